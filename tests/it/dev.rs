//! `oncebox dev`: from an empty directory to a message in a stream, and back to nothing that runs.

use std::{
    fs,
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use oncebox_tests::{eventually, http_get, is_root, nats_server_binary, postgres_directory, program_file};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    process::{Child, Command},
    time::timeout,
};

use crate::relay::{process::run, support::LIMIT};

const NOBODY: u32 = 65534;
/// Fresh catalogs and a first migration, on a busy machine.
const START_MAX: Duration = Duration::from_secs(120);

struct Dev {
    child: Child,
    lines: tokio::io::Lines<BufReader<tokio::process::ChildStdout>>,
    database_url: String,
    nats_url: String,
}

/// A directory of a user who is not root.
fn directory() -> TempDir {
    let directory = tempfile::Builder::new().prefix("oncebox-dev").tempdir_in("/tmp").unwrap();
    give(directory.path());
    directory
}

fn give(path: &Path) {
    if is_root() {
        std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
}

/// Others may take the usual ports between a kill and the next start.
fn of_its_own_ports(directory: &Path) {
    let data = directory.join("data");
    fs::create_dir(&data).unwrap();
    give(&data);
    for name in ["postgres.port", "nats.port"] {
        fs::write(data.join(name), free_port().to_string()).unwrap();
        give(&data.join(name));
    }
}

fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

fn command(directory: &Path, console: u16) -> Command {
    let program = program_file("oncebox").unwrap();
    let mut command = Command::new("setpriv");
    if is_root() {
        command.args([format!("--reuid={NOBODY}"), format!("--regid={NOBODY}"), "--clear-groups".to_owned()]);
    }
    command.arg(program).args([
        "dev",
        "--http-listen",
        "off",
        "--console-listen",
        &format!("127.0.0.1:{console}"),
    ]);
    // The servers of `make servers` are found from here.
    command.arg("--dir").arg(directory.join("data")).current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    for name in ["DATABASE_URL", "NATS_URL", "ONCEBOX_TEST_POSTGRES_BIN"] {
        command.env_remove(name);
    }
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

impl Dev {
    async fn start(directory: &Path, console: u16) -> Self {
        Self::start_with(command(directory, console)).await
    }

    async fn start_with(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let told = timeout(START_MAX, async {
            while let Some(line) = lines.next_line().await.unwrap() {
                if let Some(rest) = line.trim().strip_prefix("export DATABASE_URL='") {
                    return Some(rest.to_owned());
                }
            }
            None
        });
        let Ok(Some(told)) = told.await else {
            let mut log = String::new();
            let _ = child.start_kill();
            child.stderr.take().unwrap().read_to_string(&mut log).await.unwrap();
            panic!("it says nothing: {log}");
        };
        let (database_url, rest) = told.split_once("' NATS_URL='").unwrap();
        let nats_url = rest.trim_end_matches('\'').to_owned();
        Self { child, lines, database_url: database_url.to_owned(), nats_url }
    }

    /// As Ctrl-C does.
    async fn stop(mut self) {
        let pid = self.child.id().unwrap().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().await.unwrap().success());
        let status = timeout(LIMIT, self.child.wait()).await.expect("it ends").unwrap();
        let mut log = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut log).await.unwrap();
        assert!(status.success() && !log.contains("ERROR") && !log.contains("WARN"), "{status}: {log}");
        assert!(self.lines.next_line().await.unwrap().is_none_or(|line| !line.contains("export")), "once");
    }
}

/// A test that fails leaves no server.
impl Drop for Dev {
    fn drop(&mut self) {
        let Some(pid) = self.child.id() else { return };
        drop(std::process::Command::new("kill").args(["-INT", &pid.to_string()]).status());
        for _ in 0..100 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

async fn trace(url: &str, key: &str) -> String {
    run(url, &["trace", key]).await.1
}

#[tokio::test]
async fn from_an_empty_directory_to_a_message_in_a_stream_and_everything_ends_with_it() {
    let directory = directory();
    let console = free_port();
    let dev = Dev::start(directory.path(), console).await;
    let (database_url, nats_url) = (dev.database_url.clone(), dev.nats_url.clone());
    let enqueue =
        ["outbox", "enqueue", "hello-1", "orders.placed", r#"{"hello": "world"}"#, "--header", "a=b"];
    for said in ["enqueued hello-1\n", "was enqueued before: hello-1\n"] {
        assert_eq!(run(&database_url, &enqueue).await.1, said);
    }
    let is_stored = async || trace(&database_url, "hello-1").await.contains("settled").then_some(());
    eventually("the message is in the stream", LIMIT, is_stored).await;
    let page =
        eventually("the console answers", LIMIT, async || http_get(console, "/key?key=hello-1").await.ok())
            .await;
    assert!(page.contains("hello-1") && page.contains("orders.placed"), "{page}");
    let secret = fs::metadata(directory.path().join("data/postgres.password")).unwrap();
    assert_eq!(secret.permissions().mode() & 0o77, 0);
    dev.stop().await;
    for url in [&database_url, &nats_url] {
        let port = url.rsplit([':', '/']).find_map(|part| part.parse::<u16>().ok()).unwrap();
        TcpListener::bind(("127.0.0.1", port)).expect("nobody listens any more");
    }
    let again = Dev::start(directory.path(), console).await;
    assert_eq!(
        (&again.database_url, &again.nats_url),
        (&database_url, &nats_url),
        "what was copied goes on working"
    );
    assert!(trace(&database_url, "hello-1").await.contains("settled"));
    again.stop().await;
}

#[tokio::test]
async fn a_port_that_is_taken_is_named_before_a_server_is_started() {
    let directory = directory();
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let ended = timeout(START_MAX, command(directory.path(), port).output()).await.expect("it ends").unwrap();
    let log = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(!ended.status.success() && log.contains(&format!("127.0.0.1:{port}")), "{log}");
    assert!(log.contains("--console-listen"), "{log}");
    assert!(!directory.path().join("data").exists(), "no server was started: {log}");
}

/// A server that is outrun: when it is started first, `thief` listens on its port before it does.
fn outrun(folder: &Path, server: &Path, thief: &Path) {
    let file = folder.join(server.file_name().unwrap());
    let script = format!(
        r#"#!/bin/sh
if mkdir "$0.outrun"; then
    for port in "$@"; do [ "$before" = -p ] && break; before=$port; done
    '{thief}' -a 127.0.0.1 -p "$port" -l "$0.log" -P "$0.pid" &
    until grep -q 'Listening for client' "$0.log"; do sleep 0.1; done
fi
exec '{server}' "$@"
"#,
        thief = thief.display(),
        server = server.display()
    );
    fs::write(&file, script).unwrap();
    fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
}

/// The servers that outran others, by their files below this folder.
struct Thieves(PathBuf);

impl Thieves {
    fn end(&self) -> usize {
        let pids = ["postgres.pid", "nats-server.pid"].map(|name| fs::read_to_string(self.0.join(name)));
        let kill = |pid: &String| std::process::Command::new("kill").arg(pid.trim()).status();
        pids.iter().flatten().filter(|pid| kill(pid).is_ok_and(|status| status.success())).count()
    }
}

impl Drop for Thieves {
    fn drop(&mut self) {
        self.end();
    }
}

#[tokio::test]
async fn a_port_that_another_server_binds_first_is_left_to_it() {
    let directory = directory();
    let postgres = postgres_directory().unwrap();
    let nats = nats_server_binary().unwrap();
    let folder = directory.path().join("bin");
    fs::create_dir(&folder).unwrap();
    if is_root() {
        std::os::unix::fs::chown(&folder, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    for program in ["initdb", "pg_ctl"] {
        std::os::unix::fs::symlink(postgres.join(program), folder.join(program)).unwrap();
    }
    let thieves = Thieves(folder.clone());
    outrun(&folder, &postgres.join("postgres"), &nats);
    outrun(&folder, &nats, &nats);
    let mut command = command(directory.path(), free_port());
    // A newer PostgreSQL would be taken instead: one on PATH, or that of `make servers`.
    let others = env!("PATH").split(':').filter(|other| !Path::new(other).join("pg_ctl").exists());
    let path = std::iter::once(folder.display().to_string()).chain(others.map(str::to_owned));
    command.env("PATH", path.collect::<Vec<_>>().join(":")).current_dir(directory.path());
    let dev = Dev::start_with(command).await;
    assert_eq!(
        run(&dev.database_url, &["outbox", "enqueue", "k", "orders.placed", "{}"]).await.1,
        "enqueued k\n"
    );
    eventually("the relay has its own NATS", LIMIT, async || {
        trace(&dev.database_url, "k").await.contains("settled").then_some(())
    })
    .await;
    dev.stop().await;
    assert_eq!(thieves.end(), 2, "they were left alone");
}

#[tokio::test]
async fn behind_a_kill_it_ends_the_servers_that_were_left_and_begins_where_it_was() {
    let directory = directory();
    let console = free_port();
    of_its_own_ports(directory.path());
    let mut killed = Dev::start(directory.path(), console).await;
    let (database_url, nats_url) = (killed.database_url.clone(), killed.nats_url.clone());
    run(&database_url, &["outbox", "enqueue", "before", "orders.placed", "{}"]).await;
    killed.child.kill().await.unwrap();
    let again = Dev::start(directory.path(), console).await;
    assert_eq!((&again.database_url, &again.nats_url), (&database_url, &nats_url));
    let is_settled = async || trace(&database_url, "before").await.contains("settled").then_some(());
    eventually("the message is in the stream", LIMIT, is_settled).await;
    again.stop().await;
}

#[tokio::test]
async fn a_start_that_is_killed_while_it_makes_the_database_is_made_up_for() {
    let directory = directory();
    let console = free_port();
    let mut killed = command(directory.path(), console).spawn().unwrap();
    let data = directory.path().join("data");
    eventually("the catalogs are begun", START_MAX, async || {
        let mut made = fs::read_dir(&data).into_iter().flatten().flatten().map(|entry| entry.path());
        made.find(|path| path.join("PG_VERSION").is_file())
    })
    .await;
    killed.kill().await.unwrap();
    let dev = Dev::start(directory.path(), console).await;
    assert_eq!(
        run(&dev.database_url, &["outbox", "enqueue", "k", "orders.placed", "{}"]).await.1,
        "enqueued k\n"
    );
    dev.stop().await;
}
