//! A Redis server for one test.

use std::{path::Path, time::Duration};

use anyhow::{Result, bail, ensure};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

use crate::{
    find,
    guardian::Guardian,
    postgres::{free_port, tail},
};

const START_DEADLINE: Duration = Duration::from_secs(30);
const PORT_ATTEMPTS: u32 = 5;

/// A Redis server on a free loopback port, without persistence: it is empty after a restart.
///
/// It ends, and its directory is deleted, when this value is dropped and when this process dies by
/// any means.
#[derive(Debug)]
pub struct Redis {
    guardian: Guardian,
    port: u16,
}

impl Redis {
    /// Starts the program that [`crate::redis_server_binary`] finds.
    ///
    /// # Errors
    /// No program, or it does not start; the error has the end of its log.
    pub async fn start() -> Result<Self> {
        let binary = find::redis_server_binary()?;
        let libraries = find::unpacked_libraries(&binary);
        for _ in 0..PORT_ATTEMPTS {
            // If another process takes the port before the server does, the server ends, and
            // another port is tried.
            let port = free_port()?;
            let guardian = Guardian::new("redis", "KILL", None, |directory| {
                let environment = libraries.iter().map(|path| format!("LD_LIBRARY_PATH={path}").into());
                ["env".into()]
                    .into_iter()
                    .chain(environment)
                    .chain(command(&binary, directory, port))
                    .collect()
            })?;
            let mut server = Self { guardian, port };
            server.guardian.start().await?;
            if server.is_ready().await? {
                return Ok(server);
            }
        }
        bail!("redis-server found no free port in {PORT_ATTEMPTS} attempts")
    }

    /// `redis://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Sends SIGKILL, and waits until the server has ended. All its data is lost.
    ///
    /// # Panics
    /// It does not end within 30 seconds.
    pub async fn kill(&mut self) {
        self.guardian.signal("KILL").expect("the guardian lives as long as this value");
        self.guardian.ended().await.expect("SIGKILL ends it");
    }

    /// Starts the server again, on the same port.
    ///
    /// # Errors
    /// The server is still running, or does not start.
    pub async fn restart(&mut self) -> Result<()> {
        ensure!(self.guardian.pid().is_none(), "redis-server is still running");
        self.guardian.start().await?;
        ensure!(self.is_ready().await?, "redis-server lost its port {}", self.port);
        Ok(())
    }

    /// Sends SIGSTOP, or SIGCONT to go on. A suspended server keeps its connections open and
    /// answers nothing.
    ///
    /// # Panics
    /// It has ended.
    pub fn suspend(&mut self, on: bool) {
        let signal = if on { "STOP" } else { "CONT" };
        self.guardian.signal(signal).expect("the guardian lives as long as this value");
    }

    /// False when it ended because another process has its port.
    async fn is_ready(&mut self) -> Result<bool> {
        let deadline = Instant::now() + START_DEADLINE;
        while Instant::now() < deadline {
            if self.guardian.has_ended() {
                let log = self.guardian.log();
                ensure!(log.contains("Address already in use"), "redis-server ended: {}", tail(&log));
                return Ok(false);
            }
            if timeout(Duration::from_secs(5), self.ping()).await.is_ok_and(|answer| answer.is_ok()) {
                return Ok(true);
            }
            sleep(Duration::from_millis(20)).await;
        }
        bail!("redis-server is not ready after {START_DEADLINE:?}: {}", tail(&self.guardian.log()))
    }

    async fn ping(&self) -> Result<()> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        stream.write_all(b"PING\r\n").await?;
        let mut answer = [0; 7];
        stream.read_exact(&mut answer).await?;
        ensure!(&answer == b"+PONG\r\n", "it does not answer PING");
        Ok(())
    }
}

fn command(binary: &Path, directory: &Path, port: u16) -> Vec<std::ffi::OsString> {
    let port = port.to_string();
    let mut command = vec![binary.as_os_str().to_owned()];
    for argument in ["--bind", "127.0.0.1", "--port", &port, "--save", "", "--appendonly", "no", "--dir"] {
        command.push(argument.into());
    }
    command.push(directory.as_os_str().to_owned());
    command
}
