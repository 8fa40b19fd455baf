//! The real relay, as an operator runs it: its own process, default configuration.

use std::{
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    process::{Child, Command},
};

use crate::{
    machine::{self, field},
    servers::Servers,
};

const STOP_LIMIT: Duration = Duration::from_secs(30);

/// A running `oncebox relay`; killed when dropped, but call [`Relay::stop`].
#[derive(Debug)]
pub(crate) struct Relay {
    child: Child,
    pid: u32,
    http: SocketAddr,
}

impl Relay {
    /// Starts the `oncebox` that lies beside this program; does not wait until it is ready.
    pub(crate) fn start(servers: &Servers, database: &str) -> anyhow::Result<Self> {
        Self::start_program("oncebox", &["relay"], servers, database)
    }

    /// Starts a relay with a configuration file.
    pub(crate) fn start_with(servers: &Servers, database: &str, file: &Path) -> anyhow::Result<Self> {
        let file = file.to_str().context("a path of text")?;
        Self::start_program("oncebox", &["relay", "--config", file], servers, database)
    }

    /// Starts the loop written by hand instead, which takes the same variables and ends in the same
    /// way.
    pub(crate) fn start_rival(servers: &Servers, database: &str) -> anyhow::Result<Self> {
        Self::start_program("rival", &[], servers, database)
    }

    fn start_program(
        name: &str,
        arguments: &[&str],
        servers: &Servers,
        database: &str,
    ) -> anyhow::Result<Self> {
        let program = program(name)?;
        // Free now, and no other process takes ports here.
        let http = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr())?;
        let child = Command::new(&program)
            .args(arguments)
            .env("DATABASE_URL", servers.database_url(database))
            .env("NATS_URL", servers.nats_url())
            .env("ONCEBOX_SCHEMA", servers.schema.as_str())
            .env("ONCEBOX_HTTP_LISTEN", http.to_string())
            .env("ONCEBOX_LOG", "warn,async_nats=off")
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {}", program.display()))?;
        let pid = child.id().context("read the relay's process id")?;
        Ok(Self { child, pid, http })
    }

    /// An error when the relay has ended: nothing more will come.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("the relay ended by itself: {status}"),
        }
    }

    pub(crate) fn scraper(&self) -> Scraper {
        Scraper(self.http)
    }

    /// The most memory that was resident at any time so far, in MiB.
    pub(crate) fn peak_rss_mib(&self) -> anyhow::Result<f64> {
        let text = field(&format!("/proc/{}/status", self.pid), "VmHWM:")?;
        let kib: u32 = text.trim_end_matches("kB").trim().parse().context("read VmHWM")?;
        Ok(f64::from(kib) / 1024.0)
    }

    /// The processor time that the relay has used so far, in user and kernel mode.
    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        machine::cpu(self.pid)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Asks it to stop, and waits until it has settled its messages in flight and ended.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        let sent = Command::new("kill").args(["-TERM", &self.pid.to_string()]).status().await?;
        ensure!(sent.success(), "signal the relay: {sent}");
        let status = tokio::time::timeout(STOP_LIMIT, self.child.wait())
            .await
            .with_context(|| format!("the relay did not stop within {STOP_LIMIT:?}"))??;
        ensure!(status.success(), "the relay ended with {status}");
        Ok(())
    }
}

/// Reads the metrics, as Prometheus does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scraper(SocketAddr);

impl Scraper {
    pub(crate) async fn scrape(self) -> anyhow::Result<String> {
        let mut connection = TcpStream::connect(self.0).await.context("connect to the relay")?;
        connection.write_all(b"GET /metrics HTTP/1.1\r\nHost: relay\r\nConnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.context("read the metrics")?;
        ensure!(
            answer.contains("\noncebox_backlog_messages"),
            "the answer has no metrics of the relay: {answer}"
        );
        Ok(answer)
    }

    /// Until it is dropped. A relay that does not listen yet, or any more, is asked again.
    pub(crate) async fn each(self, interval: Duration) {
        loop {
            let _ = self.scrape().await;
            tokio::time::sleep(interval).await;
        }
    }
}

pub(crate) fn program(name: &str) -> anyhow::Result<PathBuf> {
    let directory = std::env::current_exe()?.parent().context("find this program")?.to_owned();
    let program = directory.join(name);
    ensure!(
        program.exists(),
        "{} does not exist: build oncebox-cli and oncebox-bench in the same profile",
        program.display()
    );
    Ok(program)
}
