//! The processes that the demo runs and kills: relays and consumers, the real binaries beside its
//! own.

use std::{
    fs::{self, File, OpenOptions},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use tokio::{
    process::{Child, Command},
    time::{Instant, timeout},
};

use crate::{servers::Servers, watchdog::Watchdog};

const MIGRATE_LIMIT: Duration = Duration::from_secs(30);
const STOP_LIMIT: Duration = Duration::from_secs(20);
const LOG_LINES_SHOWN: usize = 15;
/// A process that ends so soon found a server away; a request to one may take ten seconds.
const START_LIMIT: Duration = Duration::from_secs(30);
const RETRIES_MAX: u32 = 20;

/// A process that is started again when it was killed. Killed for good when this is dropped, and by
/// the watchdog when the demo itself is killed.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) name: String,
    /// How many times it was killed with SIGKILL.
    pub(crate) kills: u32,
    /// How many times it was started again because a server was away.
    retries: u32,
    program: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(&'static str, String)>,
    log: PathBuf,
    child: Child,
    since: Instant,
    watchdog: Watchdog,
}

impl Process {
    /// `oncebox relay` on one database. It sends lost messages again in any case, because no other
    /// program publishes to the stream.
    pub(crate) fn relay(name: &str, servers: &Servers, database_url: &str) -> Result<Self> {
        let environment = vec![
            ("DATABASE_URL", database_url.to_owned()),
            ("NATS_URL", servers.nats_url.clone()),
            ("ONCEBOX_EXPECTED_STREAM", servers.name.clone()),
            ("ONCEBOX_HTTP_LISTEN", "off".to_owned()),
            ("ONCEBOX_ON_LOSS", "resend".to_owned()),
        ];
        Self::start(name, servers, "oncebox", &["relay"], environment)
    }

    /// A process of the payment service.
    pub(crate) fn payment(name: &str, servers: &Servers) -> Result<Self> {
        let environment = vec![
            ("DATABASE_URL", servers.url("payments")),
            ("NATS_URL", servers.nats_url.clone()),
            ("STREAM", servers.name.clone()),
            ("SUBJECT_PREFIX", servers.prefix()),
            ("PROCESS", name.to_owned()),
        ];
        Self::start(name, servers, "payment", &[], environment)
    }

    /// A program that was built beside this one.
    pub(crate) fn start(
        name: &str,
        servers: &Servers,
        program: &str,
        arguments: &[&str],
        environment: Vec<(&'static str, String)>,
    ) -> Result<Self> {
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        let program = beside_us(program)?;
        let log = log_directory(servers)?.join(format!("{name}.log"));
        let watchdog = servers.watchdog.clone();
        let child = spawn(&program, &arguments, &environment, &log, &watchdog)?;
        Ok(Self {
            name: name.to_owned(),
            kills: 0,
            retries: 0,
            program,
            arguments,
            environment,
            log,
            child,
            since: Instant::now(),
            watchdog,
        })
    }

    /// SIGKILL: no handler runs, no buffer is flushed, locks and connections are left to the
    /// servers.
    pub(crate) async fn kill(&mut self) -> Result<()> {
        self.check()?;
        let pid = self.pid()?;
        self.child.kill().await.with_context(|| format!("kill {}", self.name))?;
        self.watchdog.forget(pid)?;
        self.kills += 1;
        Ok(())
    }

    /// Starts it again after [`Process::kill`].
    pub(crate) fn restart(&mut self) -> Result<()> {
        self.child = spawn(&self.program, &self.arguments, &self.environment, &self.log, &self.watchdog)?;
        self.since = Instant::now();
        Ok(())
    }

    /// An error when the process has ended by itself, with the end of its log. One that ended while
    /// it started, since a server was away, is started again, as a supervisor does.
    pub(crate) fn check(&mut self) -> Result<()> {
        let pid = self.child.id();
        match self.child.try_wait()? {
            None => Ok(()),
            Some(_) if self.since.elapsed() < START_LIMIT && self.retries < RETRIES_MAX => {
                self.retries += 1;
                pid.map_or(Ok(()), |pid| self.watchdog.forget(pid))?;
                self.restart()
            }
            Some(status) => {
                bail!("{} ended by itself, {status}; its last lines:\n{}", self.name, self.tail())
            }
        }
    }

    /// SIGTERM, and waits for an orderly end.
    pub(crate) async fn stop(mut self) -> Result<()> {
        self.check()?;
        let pid = self.pid()?;
        let sent = Command::new("kill").args(["-TERM", &pid.to_string()]).status().await?;
        ensure!(sent.success(), "send SIGTERM to {}", self.name);
        let status = timeout(STOP_LIMIT, self.child.wait())
            .await
            .with_context(|| format!("{} does not stop within {STOP_LIMIT:?} of SIGTERM", self.name))??;
        self.watchdog.forget(pid)?;
        ensure!(status.success(), "{} stopped with {status}; its last lines:\n{}", self.name, self.tail());
        Ok(())
    }

    fn pid(&self) -> Result<u32> {
        self.child.id().context("a process that runs has an id")
    }

    fn tail(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n")
    }
}

/// `oncebox migrate`, as an operator runs it.
pub(crate) async fn migrate(database_url: &str) -> Result<()> {
    let mut command = Command::new(beside_us("oncebox")?);
    command.arg("migrate").env("DATABASE_URL", database_url).stdin(Stdio::null()).kill_on_drop(true);
    let output = timeout(MIGRATE_LIMIT, command.output()).await.context("oncebox migrate")??;
    ensure!(output.status.success(), "oncebox migrate: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Where the processes write their logs: below the build's own directory, one folder a run.
pub(crate) fn log_directory(servers: &Servers) -> Result<PathBuf> {
    let directory = our_directory()?.join("demo-logs").join(&servers.name);
    fs::create_dir_all(&directory).with_context(|| format!("create {}", directory.display()))?;
    Ok(directory)
}

fn spawn(
    program: &Path,
    arguments: &[String],
    environment: &[(&'static str, String)],
    log: &Path,
    watchdog: &Watchdog,
) -> Result<Child> {
    let log: File = OpenOptions::new().create(true).append(true).open(log).context("open a log")?;
    let child = Command::new(program)
        .args(arguments)
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("start {}", program.display()))?;
    watchdog.watch(child.id().context("a process that was just started has an id")?)?;
    Ok(child)
}

fn beside_us(program: &str) -> Result<PathBuf> {
    let path = our_directory()?.join(program);
    ensure!(path.is_file(), "{} is not built: run `cargo build --workspace --bins`", path.display());
    Ok(path)
}

fn our_directory() -> Result<PathBuf> {
    let program = std::env::current_exe().context("find the demo's own program")?;
    Ok(program.parent().context("a program is in a directory")?.to_owned())
}
