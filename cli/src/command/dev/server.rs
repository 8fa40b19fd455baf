//! A server that `oncebox dev` has started.

use std::{
    fs::{self, File},
    io,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep, timeout},
};

const STOP_MAX: Duration = Duration::from_secs(15);
/// Ports that are tried for one server.
const TRIES_MAX: u32 = 5;
/// Bytes of a log that an error shows.
const SHOWN: usize = 2_000;

/// It ends with this value, at the latest.
#[derive(Debug)]
pub(super) struct Server {
    name: &'static str,
    child: Child,
    log: PathBuf,
    /// Has it end well; without, it is sent SIGTERM.
    stop: Option<(PathBuf, Vec<String>)>,
}

impl Server {
    /// Starts a program, whose output goes to a file of the directory.
    pub(super) fn start(
        name: &'static str,
        program: &Path,
        arguments: &[String],
        directory: &Path,
    ) -> anyhow::Result<Self> {
        let log = directory.join(format!("{name}.log"));
        let file = File::create(&log).with_context(|| format!("write {}", log.display()))?;
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            // Ctrl-C is for this program, which ends the server when the relay has drained.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {}", program.display()))?;
        let pid = child.id().map(|pid| pid.to_string()).unwrap_or_default();
        fs::write(directory.join(format!("{name}.pid")), pid)?;
        Ok(Self { name, child, log, stop: None })
    }

    /// Ends the server of an earlier `oncebox dev` that was killed, if it still runs: two of them
    /// must not write one directory. Its process has the directory among its arguments.
    pub(super) async fn end_last(name: &str, store: &Path, directory: &Path) -> anyhow::Result<()> {
        let Ok(pid) = fs::read_to_string(directory.join(format!("{name}.pid"))) else { return Ok(()) };
        let arguments = format!("/proc/{}/cmdline", pid.trim());
        let is_ours = || {
            let text = fs::read(&arguments).unwrap_or_default();
            text.split(|byte| *byte == 0).any(|argument| argument == store.as_os_str().as_encoded_bytes())
        };
        let begun = Instant::now();
        while is_ours() {
            ensure!(
                begun.elapsed() < STOP_MAX,
                "process {} of an earlier `oncebox dev` does not end: {name} in {}",
                pid.trim(),
                store.display()
            );
            let _ = Command::new("kill").args(["-INT", pid.trim()]).stderr(Stdio::null()).status().await;
            sleep(Duration::from_millis(200)).await;
        }
        Ok(())
    }

    /// Stops with this program from now on.
    pub(super) fn stopping_with(mut self, program: PathBuf, arguments: Vec<String>) -> Self {
        self.stop = Some((program, arguments));
        self
    }

    /// Waits until its log has the words. A port that answers would say less: it may be
    /// another server's, which took it first.
    pub(super) async fn await_log(&mut self, words: &str, within: Duration) -> anyhow::Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < within {
            self.check()?;
            if fs::read_to_string(&self.log)?.contains(words) {
                return Ok(());
            }
            sleep(Duration::from_millis(50)).await;
        }
        bail!("{} does not listen after {within:?}: {}", self.name, self.said())
    }

    /// An error when it has ended.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        let ended = self.child.try_wait()?;
        ensure!(ended.is_none(), "{} ended by itself: {}", self.name, self.said());
        Ok(())
    }

    fn said(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let mut from = text.len().saturating_sub(SHOWN);
        while !text.is_char_boundary(from) {
            from += 1;
        }
        format!("see {}\n{}", self.log.display(), text[from..].trim())
    }

    pub(super) async fn stop(mut self) {
        let (program, arguments) = self.stop.take().unwrap_or_else(|| {
            let pid = self.child.id().map(|pid| pid.to_string()).unwrap_or_default();
            (PathBuf::from("kill"), vec!["-TERM".to_owned(), pid])
        });
        let asked =
            Command::new(program).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
        let ended = timeout(STOP_MAX, async {
            asked.await?;
            self.child.wait().await
        });
        if !matches!(ended.await, Ok(Ok(_))) {
            tracing::warn!("{} did not end when it was asked to, and was killed", self.name);
            // The end of this value kills it.
        }
    }
}

/// Starts a server on the port that it had the last time, if that is still free; else on the usual
/// one, or any. The port is kept for the next time, so that a copied URL goes on working. When
/// another program takes the port before the server binds it, another port is tried.
pub(super) async fn on_a_port(
    directory: &Path,
    name: &'static str,
    usual: u16,
    start: impl AsyncFn(u16) -> anyhow::Result<(Server, String)>,
) -> anyhow::Result<(Server, String)> {
    let mut tries = 1;
    loop {
        let port = port(directory, name, usual)?;
        match start(port).await {
            Err(_) if tries < TRIES_MAX && lost_its_port(directory, name) => tries += 1,
            started => return started,
        }
    }
}

fn port(directory: &Path, name: &str, usual: u16) -> anyhow::Result<u16> {
    let file = directory.join(format!("{name}.port"));
    let last = fs::read_to_string(&file).ok().and_then(|text| text.trim().parse().ok());
    let is_free = |port: &u16| free(*port).is_ok();
    let port = match [last, Some(usual)].into_iter().flatten().find(is_free) {
        Some(port) => port,
        None => free(0)?,
    };
    fs::write(&file, port.to_string()).with_context(|| format!("write {}", file.display()))?;
    Ok(port)
}

/// In the words of both servers for EADDRINUSE.
fn lost_its_port(directory: &Path, name: &str) -> bool {
    let log = fs::read_to_string(directory.join(format!("{name}.log"))).unwrap_or_default();
    log.to_lowercase().contains("address already in use")
}

fn free(port: u16) -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, port))?.local_addr()?.port())
}
