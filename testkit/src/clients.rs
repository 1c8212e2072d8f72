//! The clients that applications use: programs under `fix/gateway/tests/clients`, one directory a language, and a
//! person at a browser (`cli/tests/page`), run from a copy in the cache. Their libraries come from their registries,
//! once. A language that is not on this machine fails the test: `make test` installs them all.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use unslow_engine::cache_dir;

/// redis-py: the directory with `smoke.py`; its library is in [`python_library`].
pub fn python() -> PathBuf {
    installed("python", |dir| {
        let library = dir.join("library").display().to_string();
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--upgrade", "--target", &library, "redis==6.4.0"]);
        pip
    })
}

/// For PYTHONPATH.
pub fn python_library() -> PathBuf {
    python().join("library")
}

/// node-redis: `node smoke.mjs`, run in this directory.
pub fn node() -> PathBuf {
    installed("node", |_| npm_install())
}

/// The page of a recording, used in a browser: `node drive.cjs BROWSER URL`, run in this directory.
pub fn page() -> PathBuf {
    installed_from("page", "../cli/tests/page", |_| npm_install())
}

fn npm_install() -> Command {
    let mut npm = Command::new("npm");
    npm.args(["install", "--silent", "--no-audit", "--no-fund"]);
    npm
}

/// Jedis and Lettuce: `java -cp target/classes:target/dependency/* Smoke`, run in this directory.
pub fn java() -> PathBuf {
    installed("java", |_| {
        let mut maven = Command::new("mvn");
        maven.args(["-q", "-B", "compile", "dependency:copy-dependencies"]);
        maven
    })
}

/// go-redis: the program `smoke` in this directory.
pub fn go() -> PathBuf {
    installed("go", |dir| {
        let mut go = Command::new("go");
        // Not optimized: the standard library is compiled with it, and it runs for seconds.
        go.args(["build", "-gcflags=all=-N -l", "-ldflags=-w", "-o", "smoke", "."]).env("CGO_ENABLED", "0");
        // No toolchain but the one that is here, and caches beside ours.
        go.env("GOFLAGS", "-mod=mod").env("GOTOOLCHAIN", "local");
        go.env("GOPATH", dir.join("path")).env("GOCACHE", dir.join("cache"));
        go
    })
}

fn installed(name: &str, install: impl Fn(&Path) -> Command) -> PathBuf {
    installed_from(name, &format!("../fix/gateway/tests/clients/{name}"), install)
}

/// The suite's directory in the cache, with its sources as they are in the tree, installed. Tests take turns.
fn installed_from(name: &str, sources: &str, install: impl Fn(&Path) -> Command) -> PathBuf {
    let all = cache_dir().join("clients");
    fs::create_dir_all(&all).expect("the cache can be written");
    let lock = fs::File::create(all.join(".lock")).expect("the cache can be written");
    lock.lock().expect("it can be locked");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join(sources);
    let (dir, stamp) = (all.join(name), all.join(format!("{name}.installed")));
    let mut hash = DefaultHasher::new();
    read(&sources, &mut hash);
    let wanted = hash.finish().to_string();
    // The stamp is written last: an installation that was broken off is made again.
    if fs::read_to_string(&stamp).ok().as_ref() != Some(&wanted) {
        fs::create_dir_all(&dir).expect("the cache can be written");
        run(Command::new("cp").arg("-r").arg(sources.join(".")).arg(&dir));
        download(|| {
            let mut command = install(&dir);
            command.current_dir(&dir);
            command
        });
        fs::write(stamp, wanted).expect("the cache can be written");
    }
    dir
}

/// Names and contents of all files.
fn read(from: &Path, hash: &mut DefaultHasher) {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(from).expect("the suite is there").flatten().map(|e| e.path()).collect();
    entries.sort();
    for path in entries {
        path.hash(hash);
        match path.is_dir() {
            true => read(&path, hash),
            false => fs::read(&path).expect("it can be read").hash(hash),
        }
    }
}

/// A registry that does not answer at once is asked again: what is tested is not the registry.
const DOWNLOADS: usize = 3;

#[track_caller]
fn download(command: impl Fn() -> Command) {
    for left in (0..DOWNLOADS).rev() {
        match ended(&mut command()) {
            Ok(()) => return,
            Err(why) if left == 0 => panic!("{why}"),
            Err(_) => {}
        }
    }
}

/// To its end, which must be a good one.
#[track_caller]
pub fn run(command: &mut Command) {
    ended(command).unwrap_or_else(|why| panic!("{why}"));
}

fn ended(command: &mut Command) -> Result<(), String> {
    let out = command.output().map_err(|e| format!("{command:?}: {e}; `make tools` installs what the tests need"))?;
    let (told, why) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    out.status.success().then_some(()).ok_or_else(|| format!("{command:?}: {}\n{told}\n{why}", out.status))
}
