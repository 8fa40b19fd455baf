//! A console as a process, and requests to it.

use std::{fs, net::SocketAddr, time::Duration};

use oncebox_tests::{Program, TestEnv, eventually};
use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    process::Command,
    time::{Instant, sleep, timeout},
};

use crate::relay::{process::program, support::LIMIT};

/// A console and the files that it was started with.
pub(crate) struct Console {
    program: Program,
    pub(crate) address: SocketAddr,
    files: Option<TempDir>,
}

/// An answer.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

/// A database of a file: its name and its URL.
pub(crate) type Named<'a> = (&'a str, &'a str);

impl Console {
    /// Starts one over these databases; `{tokens}` among the arguments is a file of tokens.
    pub(crate) async fn start(databases: &[Named<'_>], nats_url: Option<&str>, arguments: &[&str]) -> Self {
        let files = tempfile::tempdir().unwrap();
        let (config, tokens) = (files.path().join("fleet.toml"), files.path().join("tokens"));
        let mut text = nats_url.map(|url| format!("nats_url = {url:?}\n")).unwrap_or_default();
        for (name, url) in databases {
            text += &format!("[[database]]\nname = {name:?}\nurl = {url:?}\n");
        }
        fs::write(&config, text).unwrap();
        fs::write(&tokens, TOKENS).unwrap();
        let tokens = tokens.to_str().unwrap();
        let given = arguments.iter().map(|argument| argument.replace("{tokens}", tokens));
        let all: Vec<String> =
            ["console", "--listen", "127.0.0.1:0"].map(str::to_owned).into_iter().chain(given).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let environment = [("ONCEBOX_CONFIG", config.to_str().unwrap().to_owned())];
        let program = Program::start("oncebox", &all, &environment).await.unwrap();
        Self { files: Some(files), ..Self::served_by(program).await }
    }

    /// The one that this program serves.
    pub(crate) async fn served_by(mut program: Program) -> Self {
        let address = eventually("the console serves", LIMIT, async || {
            program.check().unwrap();
            let log = program.log();
            log.split_once("the console serves http://")?.1.split('/').next()?.parse().ok()
        });
        let address = address.await;
        Self { program, address, files: None }
    }

    /// One over the database of a test.
    pub(crate) async fn of(env: &TestEnv, arguments: &[&str]) -> Self {
        Self::start(&[("shop", env.database_url())], Some(env.nats_url()), arguments).await
    }

    /// Runs a line that a page shows, as an operator's shell does, with the console's file of
    /// databases; returns its exit code and log.
    pub(crate) async fn run(&self, line: &str) -> (i32, String) {
        let config = self.files.as_ref().unwrap().path().join("fleet.toml");
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{} {line}", program().display())]).env("ONCEBOX_CONFIG", config);
        let output = timeout(LIMIT, shell.kill_on_drop(true).output()).await.expect("an end").unwrap();
        (output.status.code().unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[], "").await
    }

    /// A request with these headers in place of the usual ones.
    pub(crate) async fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut text = format!("{method} {path} HTTP/1.0\r\nContent-Length: {}\r\n", body.len());
        if !headers.iter().any(|(name, _)| *name == "host") {
            text += "host: localhost\r\n";
        }
        headers.iter().for_each(|(name, value)| text += &format!("{name}: {value}\r\n"));
        text += &format!("\r\n{body}");
        let asking = async {
            let mut stream = TcpStream::connect(self.address).await.unwrap();
            stream.write_all(text.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer
        };
        let answer = timeout(LIMIT, asking).await.expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head: head.to_owned(), body: body.to_owned() }
    }

    /// Opens a stream of events; returns it with all that has come once that contains this text.
    pub(crate) async fn events(&self, until: &str) -> (TcpStream, String) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(b"GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let mut seen = String::new();
        let reading = async {
            while !seen.contains(until) {
                let mut bytes = [0; 4096];
                let count = stream.read(&mut bytes).await.unwrap();
                assert!(count > 0, "the stream ended: {seen}");
                seen.push_str(str::from_utf8(&bytes[..count]).unwrap());
            }
        };
        timeout(LIMIT, reading).await.expect("events");
        (stream, seen)
    }

    /// The JSON of the API below `/api/v1`.
    pub(crate) async fn api(&self, path: &str) -> Value {
        let answer = self.get(&format!("/api/v1{path}")).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        serde_json::from_str(&answer.body).unwrap()
    }

    /// Waits until the row of a database is so.
    pub(crate) async fn row(&self, name: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let mut all = self.api("/databases").await;
            let rows = all["databases"].as_array_mut().unwrap();
            let row = rows.iter_mut().find(|row| row["database"] == name).map(Value::take);
            match row {
                Some(row) if is_so(&row) => return row,
                row => assert!(begun.elapsed() < 2 * LIMIT, "the row of {name}: {row:?}"),
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Kills it.
    pub(crate) async fn kill(mut self) {
        self.program.kill().await.unwrap();
    }

    /// Ends it; returns its log.
    pub(crate) async fn stop(mut self) -> String {
        self.program.stop().await.unwrap();
        self.program.log()
    }
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
    }
}

pub(crate) const OPERATOR: &str = "operator-0123456789";
pub(crate) const READER: &str = "reader-0123456789ab";
const TOKENS: &str = "mina:operator:operator-0123456789\nrob:reader:reader-0123456789ab\n";

/// The longest time in which a page answers although a database does not.
pub(crate) const PROMPT: Duration = Duration::from_secs(10);
