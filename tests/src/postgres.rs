//! A PostgreSQL server for one test.

use std::{
    ffi::OsString,
    fs::{self, OpenOptions},
    io::Write,
    net::TcpListener,
    os::unix::{
        fs::{OpenOptionsExt, chown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use tokio::{
    sync::OnceCell,
    time::{Instant, sleep, timeout},
};
use tokio_postgres::NoTls;

use crate::{
    account::{Account, is_public},
    find,
    guardian::{Guardian, clean_environment},
};

const START_DEADLINE: Duration = Duration::from_secs(60);
const PORT_ATTEMPTS: u32 = 5;

/// The settings of every server. fsync is off: a test kills processes, never the kernel, so
/// everything that was written survives, and PostgreSQL recovers from its WAL as usual. The other
/// settings give room for many tests at once.
const SETTINGS: &[(&str, &str)] = &[
    ("listen_addresses", "'127.0.0.1'"),
    ("unix_socket_directories", "''"),
    ("fsync", "off"),
    ("max_connections", "300"),
    ("shared_buffers", "'64MB'"),
    ("log_line_prefix", "'%m [%p] %d '"),
];

/// A PostgreSQL server on a free loopback port with a fresh cluster: superuser `postgres`, no
/// password.
///
/// It ends, and its directory is deleted, when this value is dropped and when this process dies by
/// any means.
#[derive(Debug)]
pub struct Postgres {
    guardian: Guardian,
    binaries: Arc<Binaries>,
    port: u16,
}

/// How to end a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// SIGINT: sessions are cut off, a checkpoint is written.
    Fast,
    /// SIGQUIT: everything stops as it is; the next start recovers.
    Immediate,
    /// SIGKILL to the postmaster; its children notice and leave; the next start recovers.
    Kill,
}

impl Postgres {
    /// Starts the server that [`crate::postgres_directory`] finds.
    ///
    /// # Errors
    /// No binaries, or the server does not start; the error has the end of its log.
    pub async fn start() -> Result<Self> {
        Self::start_with(&[]).await
    }

    /// Like [`Postgres::start`], with more lines for `postgresql.conf`; values as they stand there,
    /// with quotes.
    ///
    /// # Errors
    /// As for `start`.
    pub async fn start_with(settings: &[(&str, &str)]) -> Result<Self> {
        Self::start_from(binaries().await?, settings).await
    }

    /// Major and minor version of the server that [`Postgres::start`] starts.
    ///
    /// # Errors
    /// As for `start`.
    pub fn version() -> Result<(u32, u32)> {
        find::postgres_version()
    }

    /// Like [`Postgres::start`], from programs that are built with TLS; it is off until `ssl` is
    /// set. `None` when there are no such programs and `ONCEBOX_TEST_TLS` is not set: `make ci`
    /// sets it.
    ///
    /// # Errors
    /// As for `start`.
    pub async fn start_with_tls() -> Result<Option<Self>> {
        let directory = match find::postgres_directory_with_tls() {
            Ok(directory) => directory,
            Err(_) if std::env::var_os("ONCEBOX_TEST_TLS").is_none() => return Ok(None),
            Err(error) => return Err(error),
        };
        if directory == find::postgres_directory()? {
            return Self::start().await.map(Some);
        }
        Self::start_from(Arc::new(Binaries { directory, _copy: None }), &[]).await.map(Some)
    }

    async fn start_from(binaries: Arc<Binaries>, settings: &[(&str, &str)]) -> Result<Self> {
        let guardian = Guardian::new("postgres", "QUIT", Account::for_servers(), |directory| {
            let program = binaries.directory.join("postgres").into_os_string();
            vec![program, OsString::from("-D"), directory.join("data").into_os_string()]
        })?;
        let mut server = Self { guardian, binaries, port: 0 };
        server.initdb().await?;
        let mut lines: Vec<_> = SETTINGS.to_vec();
        lines.extend_from_slice(settings);
        server.configure(&lines)?;
        for _ in 0..PORT_ATTEMPTS {
            // If another process takes the port before the server does, the server ends, and
            // another port is tried.
            server.port = free_port()?;
            server.configure(&[("port", &server.port.to_string())])?;
            server.guardian.start().await?;
            if server.is_ready().await? {
                return Ok(server);
            }
        }
        bail!("PostgreSQL found no free port in {PORT_ATTEMPTS} attempts")
    }

    /// `postgres://postgres@127.0.0.1:PORT/database`.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// The port, the same after a restart.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The path of a client program of the same version: `psql`, `pg_dump`, `pg_restore`, ...
    #[must_use]
    pub fn bin(&self, program: &str) -> PathBuf {
        self.binaries.directory.join(program)
    }

    /// Writes a file into the server's data directory, such as `pg_hba.conf` or a key: it belongs
    /// to the server's account, and no other account can read it. `SELECT pg_reload_conf()` makes
    /// the server look at it.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.guardian.directory().join("data").join(name);
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
        file.write_all(text.as_bytes())?;
        if let Some(account) = Account::for_servers() {
            chown(&path, Some(account.user), Some(account.group))?;
        }
        Ok(path)
    }

    /// A second server, a standby that follows this one by streaming replication, at another port.
    ///
    /// # Errors
    /// It cannot be copied or does not start.
    pub async fn start_standby(&self) -> Result<Self> {
        let binaries = Arc::clone(&self.binaries);
        let guardian = Guardian::new("postgres", "QUIT", Account::for_servers(), |directory| {
            let program = binaries.directory.join("postgres").into_os_string();
            vec![program, OsString::from("-D"), directory.join("data").into_os_string()]
        })?;
        let mut server = Self { guardian, binaries, port: 0 };
        let mut copy = Command::new(self.bin("pg_basebackup"));
        copy.args(["--write-recovery-conf", "--checkpoint=fast", "--no-sync", "--wal-method=stream"]);
        copy.arg("--dbname").arg(self.url("postgres"));
        copy.arg("--pgdata").arg(server.guardian.directory().join("data"));
        server.run("pg_basebackup", copy).await?;
        for _ in 0..PORT_ATTEMPTS {
            server.port = free_port()?;
            server.configure(&[("port", &server.port.to_string())])?;
            server.guardian.start().await?;
            if server.is_ready().await? {
                return Ok(server);
            }
        }
        bail!("the standby found no free port in {PORT_ATTEMPTS} attempts")
    }

    /// The postmaster's process id.
    ///
    /// # Panics
    /// The server is stopped.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.guardian.pid().expect("the server runs")
    }

    /// The server's log.
    #[must_use]
    pub fn log(&self) -> String {
        self.guardian.log()
    }

    /// Stops and starts again: same port, same data.
    ///
    /// # Errors
    /// The server does not start again.
    pub async fn restart(&mut self, how: Stop) -> Result<()> {
        self.stop(how).await;
        self.resume().await
    }

    /// Ends the server and waits until it has ended; the data stays.
    ///
    /// # Panics
    /// It does not end within 30 seconds.
    pub async fn stop(&mut self, how: Stop) {
        let signal = match how {
            Stop::Fast => "INT",
            Stop::Immediate => "QUIT",
            Stop::Kill => "KILL",
        };
        self.guardian.signal(signal).expect("the guardian lives as long as this value");
        self.guardian.ended().await.expect("PostgreSQL ends when it is told to");
    }

    /// Starts a stopped server: same port, same data.
    ///
    /// # Errors
    /// The server does not start.
    pub async fn resume(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_DEADLINE;
        loop {
            self.guardian.start().await?;
            if self.is_ready().await? {
                return Ok(());
            }
            // After SIGKILL the last children may still hold the port for a moment.
            ensure!(Instant::now() < deadline, "PostgreSQL does not start on its old port {}", self.port);
            sleep(Duration::from_millis(50)).await;
        }
    }

    async fn initdb(&self) -> Result<()> {
        let mut command = Command::new(self.bin("initdb"));
        command.args([
            "--username=postgres",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
            "-D",
        ]);
        command.arg(self.guardian.directory().join("data"));
        self.run("initdb", command).await
    }

    /// Runs a program as the account that runs the server.
    async fn run(&self, name: &str, mut command: Command) -> Result<()> {
        clean_environment(command.current_dir("/"));
        if let Some(account) = Account::for_servers() {
            command.uid(account.user).gid(account.group);
        }
        let mut command = tokio::process::Command::from(command);
        let output =
            timeout(START_DEADLINE, command.kill_on_drop(true).output()).await.context(name.to_owned())??;
        ensure!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    fn configure(&self, settings: &[(&str, &str)]) -> Result<()> {
        let path = self.guardian.directory().join("data/postgresql.conf");
        let mut file = OpenOptions::new().append(true).open(path).context("open postgresql.conf")?;
        for (name, value) in settings {
            writeln!(file, "{name} = {value}")?;
        }
        Ok(())
    }

    /// Waits until the server answers. False when it ended because the port or the memory was still
    /// taken.
    async fn is_ready(&mut self) -> Result<bool> {
        let deadline = Instant::now() + START_DEADLINE;
        let url = self.url("postgres");
        while Instant::now() < deadline {
            if let Ok(Ok((client, connection))) =
                timeout(Duration::from_secs(5), tokio_postgres::connect(&url, NoTls)).await
            {
                let (answer, _) = tokio::join!(
                    async move { client.simple_query("SELECT").await },
                    timeout(Duration::from_secs(5), connection)
                );
                // Another server may have taken the port; then ours has ended or is about to.
                if answer.is_ok() && self.has_opened_port() {
                    return Ok(true);
                }
            }
            if self.guardian.has_ended() {
                let log = self.guardian.log();
                let taken = ["Address already in use", "is still in use"];
                // The children of a killed server still write beside the one that starts.
                let mut lines = log.lines().rev().take(300);
                if lines.any(|line| taken.iter().any(|reason| line.contains(reason))) {
                    return Ok(false);
                }
                bail!("PostgreSQL ended while it started:\n{}", tail(&log));
            }
            sleep(Duration::from_millis(20)).await;
        }
        bail!("PostgreSQL does not answer on {url}:\n{}", tail(&self.guardian.log()))
    }

    /// The sixth line of postmaster.pid is the address, written once the port is ours; the first is
    /// the pid.
    fn has_opened_port(&self) -> bool {
        let file =
            fs::read_to_string(self.guardian.directory().join("data/postmaster.pid")).unwrap_or_default();
        let pid = file.lines().next().and_then(|pid| pid.parse().ok());
        pid.is_some()
            && pid == self.guardian.pid()
            && file.lines().nth(5).is_some_and(|address| !address.is_empty())
    }
}

/// PostgreSQL's programs, readable for the account that runs the server.
#[derive(Debug)]
struct Binaries {
    directory: PathBuf,
    // Deletes the copy, if there is one, when this process ends.
    _copy: Option<Guardian>,
}

async fn binaries() -> Result<Arc<Binaries>> {
    static BINARIES: OnceCell<Arc<Binaries>> = OnceCell::const_new();
    let found = BINARIES.get_or_try_init(|| async {
        let directory = find::postgres_directory()?;
        if Account::for_servers().is_none() || is_public(&directory) {
            return Ok(Arc::new(Binaries { directory, _copy: None }));
        }
        // A clone below /root, say: `nobody` cannot read it. The programs find the rest relative to
        // themselves; the pinned package keeps their libraries beside its own folder.
        let bin = directory.file_name().context("the bin directory has a name")?;
        let installation = directory.parent().context("the bin directory has a parent")?;
        let package = installation.parent().context("the installation has a parent")?;
        let libraries = package.with_extension("libs");
        let copy = Guardian::new("postgres-copy", "TERM", None, |_| Vec::new())?;
        let target = copy.directory().join("package/installation");
        copy_tree(installation, &target)?;
        if libraries.is_dir() {
            let name = libraries.file_name().context("the libraries' directory has a name")?;
            copy_tree(&libraries, &copy.directory().join(name))?;
        }
        let directory = target.join(bin);
        make_public(copy.directory())?;
        anyhow::Ok(Arc::new(Binaries { directory, _copy: Some(copy) }))
    });
    found.await.cloned()
}

fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    let status = Command::new("cp").arg("-RL").arg(from.join(".")).arg(to).status()?;
    ensure!(status.success(), "copy {} to where `nobody` can read it: {status}", from.display());
    Ok(())
}

fn make_public(directory: &Path) -> Result<()> {
    let status = Command::new("chmod").args(["-R", "a+rX"]).arg(directory).status()?;
    ensure!(status.success(), "let `nobody` read {}: {status}", directory.display());
    Ok(())
}

/// A port that no server listens on right now.
pub(crate) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr())?.port())
}

/// The last thirty lines of a log.
#[must_use]
pub fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}
