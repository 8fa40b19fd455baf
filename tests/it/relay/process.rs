//! The program `oncebox` as a process: start it, signal it, ask it over HTTP.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex},
};

use oncebox_connect::config::OPTIONS;
use oncebox_relay::Values;
use oncebox_tests::{eventually, http_address, oncebox, program_file};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    process::{Child, Command},
    task::JoinSet,
};

use crate::relay::support::LIMIT;

/// The program, built into the directory above the test binary's; `make test` sees to that.
pub(crate) fn program() -> PathBuf {
    program_file("oncebox").unwrap()
}

/// Runs a command of `oncebox` against a database to its end; returns its exit code, standard
/// output and error.
pub(crate) async fn run(database_url: &str, arguments: &[&str]) -> (i32, String, String) {
    oncebox(arguments, &[("DATABASE_URL", database_url)]).await.unwrap()
}

/// Runs a command that must succeed; returns its standard output. A status of messages that wait
/// for a relay ends with 1.
pub(crate) async fn run_ok(database_url: &str, arguments: &[&str]) -> String {
    let (code, output, log) = run(database_url, arguments).await;
    let may_wait = arguments.first() == Some(&"status");
    assert!(code == 0 || code == 1 && may_wait, "{arguments:?}: {output}{log}");
    output
}

/// The environment that stands for these values.
pub(crate) fn environment(values: &Values) -> impl Iterator<Item = (&str, &str)> {
    values.iter().map(|(name, text)| {
        let option = OPTIONS.iter().find(|option| option.name == *name).expect("an option");
        (option.environment, text.as_str())
    })
}

/// Status and body of a GET.
pub(crate) async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: relay\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// A running `oncebox`; killed when dropped.
pub(crate) struct Process {
    child: Child,
    log: Arc<Mutex<String>>,
    reading: JoinSet<()>,
}

impl Process {
    /// `oncebox relay`, configured by its environment alone.
    pub(crate) fn relay(values: &Values) -> Self {
        Self::start(&["relay"], environment(values))
    }

    pub(crate) fn start<'a>(
        arguments: &[&str],
        environment: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Self {
        Self::start_file(&program(), arguments, environment)
    }

    /// The same with a program of another release.
    pub(crate) fn start_file<'a>(
        file: &Path,
        arguments: &[&str],
        environment: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Self {
        let mut command = Command::new(file);
        command.args(arguments).env_clear().envs(environment);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (mut reading, written) = (JoinSet::new(), Arc::clone(&log));
        reading.spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                written.lock().unwrap().push_str(&(line + "\n"));
            }
        });
        Self { child, log, reading }
    }

    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    pub(crate) async fn await_log(&self, text: &str) {
        let what = format!("the relay says {text:?}");
        eventually(&what, LIMIT, async || self.log().contains(text).then_some(())).await;
    }

    /// Sends a signal by name, such as `TERM`.
    pub(crate) async fn signal(&self, name: &str) {
        let pid = self.child.id().expect("it runs");
        let sent = Command::new("sh").args(["-c", &format!("kill -{name} {pid}")]).status().await.unwrap();
        assert!(sent.success());
    }

    /// SIGKILL.
    pub(crate) async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    /// Waits until it has ended by itself; returns its status and all it logged.
    pub(crate) async fn ended(mut self) -> (ExitStatus, String) {
        let waiting = tokio::time::timeout(LIMIT, self.child.wait()).await;
        let status = waiting.unwrap_or_else(|_| panic!("still running: {}", self.log())).unwrap();
        self.reading.join_next().await;
        (status, self.log())
    }

    /// Where it serves HTTP, by its own word.
    pub(crate) async fn address(&self) -> SocketAddr {
        eventually("an HTTP address in the log", LIMIT, async || http_address(&self.log())).await
    }

    /// Status and body of a GET.
    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        get(self.address().await, path).await
    }

    /// A scrape with what PostgreSQL was asked for: the first ones of a relay that starts on a busy
    /// machine are without.
    pub(crate) async fn reading(&self) -> String {
        eventually("a scrape with the lanes of the outbox", LIMIT, async || {
            let (_, text) = self.get("/metrics").await;
            text.contains("oncebox_lane_lag_seconds{").then_some(text)
        })
        .await
    }

    /// The value of a metric without labels.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let (_, text) = self.get("/metrics").await;
        let line = text.lines().find(|line| line.split(' ').next() == Some(name));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).rsplit(' ').next().unwrap().parse().unwrap()
    }
}
