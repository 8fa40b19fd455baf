//! The hint that each client sends after its COMMIT: it wakes a sleeping relay at once, and never
//! holds up or fails its caller.

use std::{process::Stdio, time::Duration};

use futures_util::StreamExt as _;
use oncebox_schema::wake_subject;
use oncebox_tests::{TestEnv, eventually};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::{Instant, timeout},
};

use super::shop::{LIMIT, Programs};
use crate::relay::{
    asleep::{AFTER, LONG, SOON, arrives, await_asleep, relay, sessions},
    process::Process,
    support::{assert_delivered, await_messages, enqueue, stored, values_of, with},
};

/// Rounds of a test that measures.
const ROUNDS: i32 = 5;

/// Defines the tests of each client.
macro_rules! clients {
    ($($client:ident),*) => {$(
        mod $client {
            #[tokio::test]
            async fn a_hint_after_commit_wakes_a_relay_that_sleeps() {
                super::wake(stringify!($client)).await;
            }

            #[tokio::test]
            async fn a_hint_wakes_the_other_relay_of_one_that_was_killed_in_its_sleep() {
                super::kill(stringify!($client)).await;
            }

            #[tokio::test]
            async fn a_hint_neither_waits_nor_fails() {
                super::bound(stringify!($client)).await;
            }
        }
    )*};
}
clients!(rust, python, typescript, go);

/// A client that sends its hints when it is told to.
enum Waking {
    Rust(async_nats::Client, String, usize),
    /// The child is killed with it.
    Program {
        _child: Child,
        input: ChildStdin,
        lines: Lines<BufReader<ChildStdout>>,
    },
}

impl Waking {
    /// `None` where there is no toolchain for it.
    async fn start(client: &str, nats_url: &str, database: &str, arguments: &[&str]) -> Option<Self> {
        if client == "rust" {
            let hints = arguments.first().map_or(1, |hints| hints.parse().unwrap());
            let connection = async_nats::connect(nats_url).await.unwrap();
            if arguments.len() > 1 {
                connection.drain().await.unwrap();
            }
            return Some(Self::Rust(connection, database.to_owned(), hints));
        }
        let mut command = Command::new(Programs::of(client)?.file("waking"));
        command.arg(database).args(arguments).env("NATS_URL", nats_url);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut lines = BufReader::new(output).lines();
        let connected = timeout(LIMIT, lines.next_line()).await.expect("it connects").unwrap();
        assert_eq!(connected.as_deref(), Some("connected"));
        Some(Self::Program { _child: child, input, lines })
    }

    /// Returns the longest time that a hint held its caller up.
    async fn wake(&mut self) -> Duration {
        match self {
            Self::Rust(connection, database, hints) => {
                let mut longest = Duration::ZERO;
                for _ in 0..*hints {
                    let begun = Instant::now();
                    oncebox_outbox::wake(connection, database, "oncebox").await;
                    longest = longest.max(begun.elapsed());
                }
                longest
            }
            Self::Program { input, lines, .. } => {
                input.write_all(b"wake\n").await.unwrap();
                let said = timeout(LIMIT, lines.next_line()).await.expect("the hints end").unwrap();
                Duration::from_secs_f64(said.expect("a number").parse::<f64>().unwrap() / 1e3)
            }
        }
    }
}

async fn database(env: &TestEnv) -> String {
    env.pg().await.query_one("SELECT current_database()::text", &[]).await.unwrap().get(0)
}

/// At once with a hint; not without one, for as long as the relay sleeps.
async fn wake(client: &str) {
    let env = TestEnv::new().await;
    let (stream, postgres) = (env.stream().await, env.pg().await);
    let running = relay(&values_of(&env), LONG);
    let mut took = Vec::new();
    for number in 0..ROUNDS {
        await_asleep(&postgres).await;
        let Some(mut waking) = Waking::start(client, env.nats_url(), &database(&env).await, &[]).await else {
            return;
        };
        enqueue(&postgres, &env.subject("a"), "m-", number..number + 1, 0).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(sessions(&postgres).await, 0, "it sleeps");
        let begun = Instant::now();
        waking.wake().await;
        arrives(&stream, number + 1, SOON).await;
        took.push(begun.elapsed());
    }
    took.sort();
    eprintln!(
        "{client}, after a hint: median {:?}, longest {:?}",
        took[took.len() / 2],
        took[took.len() - 1]
    );
    running.stop().await;
}

async fn kill(client: &str) {
    let env = TestEnv::new().await;
    let (stream, postgres) = (env.stream().await, env.pg().await);
    let Some(mut waking) = Waking::start(client, env.nats_url(), &database(&env).await, &[]).await else {
        return;
    };
    let values = with(&values_of(&env), AFTER);
    let (killed, other) = (Process::relay(&values), Process::relay(&values));
    for relay in [&killed, &other] {
        relay.await_log("the relay sleeps").await;
    }
    eventually("no session", LIMIT, async || (sessions(&postgres).await == 0).then_some(())).await;
    killed.kill().await;
    let keys = enqueue(&postgres, &env.subject("a"), "m-", 0..20, 3).await;
    waking.wake().await;
    timeout(SOON, await_messages(&stream, 20)).await.expect("the other one is awake");
    assert_eq!(assert_delivered(&stored(&stream).await, &keys), 0, "copies");
    other.signal("TERM").await;
    assert!(other.ended().await.0.success());
}

/// The subject names the database, and a connection that is closed is no error.
async fn bound(client: &str) {
    let env = TestEnv::new().await;
    let name = "Ord\u{e9}rs.2 %~*>'(!)_-";
    let mut heard = env.nats().await.subscribe(wake_subject(name, "oncebox")).await.unwrap();
    let Some(mut waking) = Waking::start(client, env.nats_url(), name, &["2000"]).await else { return };
    let longest = waking.wake().await;
    eprintln!("{client}: of 2,000 hints the longest took {longest:?}");
    assert!(longest < Duration::from_millis(500), "{longest:?}");
    for _ in 0..100 {
        timeout(LIMIT, heard.next()).await.expect("it is heard").unwrap();
    }
    let mut closed = Waking::start(client, env.nats_url(), name, &["10", "closed"]).await.unwrap();
    let longest = closed.wake().await;
    assert!(longest < Duration::from_millis(500), "{longest:?}");
}
