//! A nats-server of a test's own.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

use crate::{
    eventually::eventually,
    find,
    guardian::Guardian,
    postgres::{free_port, tail},
};

const START_DEADLINE: Duration = Duration::from_secs(60);
const PORT_ATTEMPTS: u32 = 5;

/// A nats-server with JetStream on a free loopback port, with a store of its own.
///
/// It ends, and its directory is deleted, when this value is dropped and when this process dies by
/// any means.
#[derive(Debug)]
pub struct Nats {
    guardian: Guardian,
    config: String,
    jetstream: String,
    port: u16,
}

impl Nats {
    /// Starts the server that [`crate::nats_server_binary`] finds.
    ///
    /// # Errors
    /// No binary, or the server does not start; the error has the end of its log.
    pub async fn start() -> Result<Self> {
        Self::start_with("").await
    }

    /// Like [`Nats::start`], with more lines for the configuration file, such as `max_payload:
    /// 4096`. A setting here wins over the harness's own; `jetstream` is the harness's.
    ///
    /// # Errors
    /// As for `start`.
    pub async fn start_with(config: &str) -> Result<Self> {
        Self::start_with_jetstream("", config).await
    }

    /// Like [`Nats::start_with`], with more lines for the block `jetstream` too, such as `max_file:
    /// 1MB`.
    ///
    /// # Errors
    /// As for `start`; a version that does not know a line says so.
    pub async fn start_with_jetstream(jetstream: &str, config: &str) -> Result<Self> {
        let binary = find::nats_server_binary()?;
        let guardian = Guardian::new("nats", "TERM", None, |directory| {
            vec![binary.into_os_string(), "-c".into(), directory.join("nats.conf").into_os_string()]
        })?;
        let (config, jetstream) = (config.to_owned(), jetstream.to_owned());
        let mut server = Self { guardian, config, jetstream, port: 0 };
        for _ in 0..PORT_ATTEMPTS {
            // If another process takes the port before the server does, the server ends, and
            // another port is tried.
            server.port = free_port()?;
            server.configure()?;
            server.guardian.start().await?;
            if server.is_ready().await? {
                return Ok(server);
            }
        }
        bail!("nats-server found no free port in {PORT_ATTEMPTS} attempts")
    }

    /// `nats://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// The port, the same after a restart.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The server's process id.
    ///
    /// # Panics
    /// The server is stopped.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.guardian.pid().expect("the server runs")
    }

    /// Whether it is not known to have ended.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.guardian.pid().is_some()
    }

    /// The server's log.
    #[must_use]
    pub fn log(&self) -> String {
        self.guardian.log()
    }

    /// SIGKILL, and waits until it has ended; the store stays.
    ///
    /// # Panics
    /// It does not end within 30 seconds.
    pub async fn kill(&mut self) {
        self.end("KILL").await;
    }

    /// SIGTERM, and waits until it has ended; the store stays.
    ///
    /// # Panics
    /// It does not end within 30 seconds.
    pub async fn stop(&mut self) {
        self.end("TERM").await;
    }

    /// SIGSTOP, or SIGCONT: the server's connections stay open and nothing is answered. Waits until
    /// it is so.
    ///
    /// # Panics
    /// It does not stop within 30 seconds.
    pub async fn suspend(&mut self, on: bool) {
        self.guardian
            .signal(if on { "STOP" } else { "CONT" })
            .expect("the guardian lives as long as this value");
        let stat = format!("/proc/{}/stat", self.pid());
        eventually("the server's state changes", START_DEADLINE, async || {
            let stopped = fs::read_to_string(&stat).ok()?.rsplit(") ").next()?.starts_with('T');
            (stopped == on).then_some(())
        })
        .await;
    }

    /// The server's own name for itself, by which a cluster names its leaders.
    #[must_use]
    pub fn name(&self) -> String {
        format!("oncebox-{}", self.port)
    }

    /// Major and minor version of the server that [`Nats::start`] starts.
    ///
    /// # Errors
    /// As for `start`.
    pub fn version() -> Result<(u32, u32)> {
        find::nats_server_version()
    }

    /// Starts a stopped or killed server: same port, same store.
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
            ensure!(Instant::now() < deadline, "nats-server does not start on its old port {}", self.port);
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Replaces the lines given to [`Nats::start_with`]; the server reads them when it starts
    /// again.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn reconfigure(&mut self, config: &str) -> Result<()> {
        config.clone_into(&mut self.config);
        self.configure()
    }

    /// Stops and starts again: same port, same store.
    ///
    /// # Errors
    /// The server does not start again.
    pub async fn restart(&mut self) -> Result<()> {
        self.stop().await;
        self.resume().await
    }

    /// Keeps a copy of the store as it is, which takes a restart.
    ///
    /// # Errors
    /// The store cannot be copied, or the server does not start again.
    pub async fn back_up(&mut self) -> Result<()> {
        self.stop().await;
        let directory = self.guardian.directory();
        copy_directory(&directory.join("store"), &directory.join("backup")).context("copy the store")?;
        self.resume().await
    }

    /// SIGKILL, and puts the copy of [`Nats::back_up`] in the place of the store, as after a power
    /// loss or a restore; the server stays down until [`Nats::resume`].
    ///
    /// # Errors
    /// There is no copy, or it cannot be put there.
    pub async fn roll_back(&mut self) -> Result<()> {
        self.put_back("").await
    }

    /// Like [`Nats::roll_back`], for one stream; the other streams keep their messages.
    ///
    /// # Errors
    /// As for `roll_back`.
    pub async fn roll_back_stream(&mut self, name: &str) -> Result<()> {
        self.put_back(&format!("jetstream/$G/streams/{name}")).await
    }

    async fn put_back(&mut self, part: &str) -> Result<()> {
        self.kill().await;
        let directory = self.guardian.directory();
        let store = directory.join("store").join(part);
        fs::remove_dir_all(&store).context("delete the store")?;
        copy_directory(&directory.join("backup").join(part), &store).context("put the copy in its place")
    }

    /// Keeps the directory of the streams from ever being empty, for tests that share this server.
    ///
    /// With an account's last stream, nats-server deletes the directory too, and a stream that is
    /// created at that moment ends with `10049 error creating store for stream`: of three programs
    /// that create and delete streams, 4 % of the creations with 2.9.10, and 0.03 % with 2.15.1.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn keep_directory_of_streams(&self) -> Result<()> {
        let kept = self.guardian.directory().join("store/jetstream/$G/streams/kept");
        fs::create_dir_all(kept).context("keep the directory of the streams")
    }

    async fn end(&mut self, signal: &str) {
        self.guardian.signal(signal).expect("the guardian lives as long as this value");
        self.guardian.ended().await.expect("nats-server ends when it is told to");
    }

    fn configure(&self) -> Result<()> {
        let directory = self.guardian.directory();
        let store = directory.join("store");
        let text = format!(
            "listen: \"127.0.0.1:{}\"\nserver_name: {:?}\njetstream {{ store_dir: {store:?}\n{} }}\n{}\n",
            self.port,
            self.name(),
            self.jetstream,
            self.config
        );
        fs::write(directory.join("nats.conf"), text).context("write nats.conf")
    }

    /// Waits until the server greets and JetStream is ready. False when it ended because the port
    /// was taken.
    async fn is_ready(&mut self) -> Result<bool> {
        let deadline = Instant::now() + START_DEADLINE;
        // The log holds earlier starts too; each begins with this line.
        let latest =
            |log: &str| log.rsplit("Starting nats-server").next().map(str::to_owned).unwrap_or_default();
        while Instant::now() < deadline {
            let log = latest(&self.guardian.log());
            if log.contains("Server is ready") && greets(self.port).await {
                return Ok(true);
            }
            if self.guardian.has_ended() {
                if log.contains("address already in use") {
                    return Ok(false);
                }
                bail!("nats-server ended while it started:\n{}", tail(&log));
            }
            sleep(Duration::from_millis(10)).await;
        }
        bail!("nats-server is not ready on port {}:\n{}", self.port, tail(&self.guardian.log()))
    }
}

fn copy_directory(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_directory(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// A nats-server speaks first, and says whether it has JetStream.
async fn greets(port: u16) -> bool {
    let greeting = async {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).await?;
        std::io::Result::Ok(line)
    };
    matches!(timeout(Duration::from_secs(5), greeting).await, Ok(Ok(line)) if line.contains(r#""jetstream":true"#))
}
