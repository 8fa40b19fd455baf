//! Several relays and consumers in strict order, of which one is killed now and then, while some
//! of a hundred ordering keys have dead letters: each key has its effects once and in order in the
//! end.

use std::{collections::BTreeMap, time::Duration};

use oncebox_inbox::{Consumer, Context, Handler, HandlerError, Inbox, Order, Outcome};
use oncebox_tests::{Program, TestEnv, eventually, pool};
use serde::Deserialize;
use tokio::time::{Instant, sleep};
use tokio_postgres::Client;

use super::{ordering, shop::Programs};
use crate::{
    inbox::consumer::Running,
    relay::{
        process::{Process, run_ok},
        support::values_of,
    },
};

/// Two of them share the processors, and a leader that is killed is missed after a while.
const LIMIT: Duration = Duration::from_secs(120);
const KEYS: i32 = 100;
/// Messages of each ordering key.
const EACH: i32 = 12;
/// Of these ordering keys, this message dies.
const DYING: [(i32, i32); 5] = [(10, 0), (30, 4), (50, 5), (70, 9), (90, 4)];
/// Of the ones below, it is discarded; of the others, it is retried.
const DISCARDED: usize = 2;
const EFFECTS: i64 = KEYS as i64 * EACH as i64;

#[tokio::test(flavor = "multi_thread")]
async fn rust() {
    survive("rust", 10).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn python() {
    survive("python", 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn go() {
    survive("go", 2).await;
}

/// A consumer, which can be killed.
enum Consuming {
    Rust(Option<Running>),
    Program(Program),
}

impl Consuming {
    async fn start(env: &TestEnv, client: &str) -> Option<Self> {
        Some(match client {
            "rust" => Self::Rust(Some(here(env).await)),
            _ => Self::Program(ordering::start(env, &Programs::of(client)?, "strict", "1").await),
        })
    }

    /// Another one in its place.
    async fn replace(&mut self, env: &TestEnv) {
        match self {
            Self::Rust(running) => {
                running.take().unwrap().tasks.shutdown().await;
                *running = Some(here(env).await);
            }
            Self::Program(program) => {
                program.kill().await.unwrap();
                program.restart().await.unwrap();
            }
        }
    }
}

#[derive(Deserialize)]
struct Numbered {
    key: String,
    n: i32,
}

/// As the programs do.
struct Numbers;

impl Handler for Numbers {
    type Message = Numbered;
    type Reply = ();

    async fn handle(
        &self,
        cx: Context<'_>,
        Numbered { key, n }: Numbered,
    ) -> Result<Outcome<()>, HandlerError> {
        let broken = "SELECT FROM tried WHERE key = $1 AND n < 0 AND n = -$2::int";
        if cx.transaction().query_opt(broken, &[&key, &n]).await?.is_some() {
            return Ok(Outcome::dead(format!("no account {n}")));
        }
        cx.transaction().execute("INSERT INTO effect (key, n) VALUES ($1, $2)", &[&key, &n]).await?;
        Ok(Outcome::done(()))
    }
}

async fn here(env: &TestEnv) -> Running {
    let connections = pool(env.database_url(), 9, Duration::from_secs(10)).unwrap();
    let inbox = Inbox::builder(connections).scope("ordering:test").single_tenant().build().unwrap();
    let consumer = Consumer::new(env.jetstream().await, env.name(), "ordering").order(Order::Strict);
    Running::start(consumer.concurrency(8).ack_wait(Duration::from_secs(2)), inbox, Numbers)
}

/// All that is killed, in its turn.
struct Fleet<'a> {
    env: &'a TestEnv,
    relays: Vec<Process>,
    consumers: Vec<Consuming>,
    turn: usize,
}

impl Fleet<'_> {
    async fn kill_one(&mut self) {
        let place = self.turn / 2 % self.relays.len();
        if self.turn.is_multiple_of(2) {
            self.consumers[place].replace(self.env).await;
        } else {
            let next = Process::relay(&values_of(self.env));
            std::mem::replace(&mut self.relays[place], next).kill().await;
        }
        self.turn += 1;
    }
}

/// Enqueues the messages with these places of each ordering key. Their numbers begin with one,
/// since one that dies is named by its negative.
async fn enqueue(env: &TestEnv, client: &Client, numbers: std::ops::Range<i32>) {
    let sql = "SELECT count(oncebox.enqueue(
                   format('key-%s-%s', k, n), $1, convert_to(format('{\"key\": \"key-%s\", \"n\": %s}', k, n + 1), 'UTF8'),
                   '{}', 'key-' || k))
               FROM generate_series($2::int, $3::int - 1) AS n, generate_series(0, $4::int - 1) AS k";
    client.query_one(sql, &[&env.subject("s"), &numbers.start, &numbers.end, &KEYS]).await.unwrap();
}

/// How many messages wait for those that die.
fn held() -> i64 {
    DYING.iter().map(|(_, n)| i64::from(EACH - n - 1)).sum()
}

async fn stands(client: &Client) -> (i64, i64, i64) {
    let sql = "SELECT (SELECT count(*) FROM effect), (SELECT count(*) FROM oncebox.inbox_behind),
                      (SELECT count(*) FROM oncebox.dead_letter)";
    let row = client.query_one(sql, &[]).await.unwrap();
    (row.get(0), row.get(1), row.get(2))
}

async fn until(client: &Client, expected: (i64, i64, i64)) {
    let begun = Instant::now();
    while stands(client).await != expected {
        let found = stands(client).await;
        assert!(begun.elapsed() < LIMIT, "effects, behind, dead: {found:?}, and not {expected:?}");
        sleep(Duration::from_millis(100)).await;
    }
}

async fn survive(client: &str, size: usize) {
    let env = TestEnv::new().await;
    env.stream().await;
    let postgres = env.pg().await;
    postgres.batch_execute(ordering::TABLES).await.unwrap();
    for (key, n) in DYING {
        let broken = "INSERT INTO tried VALUES ('key-' || $1::int, -($2::int + 1))";
        postgres.execute(broken, &[&key, &n]).await.unwrap();
    }
    let mut consumers = Vec::new();
    for _ in 0..size {
        let Some(consumer) = Consuming::start(&env, client).await else { return };
        consumers.push(consumer);
    }
    let relays = (0..size).map(|_| Process::relay(&values_of(&env))).collect();
    let mut fleet = Fleet { env: &env, relays, consumers, turn: 0 };
    // The process that has seen the first one die is not killed before its line waits.
    enqueue(&env, &postgres, 0..2).await;
    until(&postgres, (i64::from(KEYS) * 2 - 2, 1, 1)).await;
    for from in 1..EACH / 2 {
        enqueue(&env, &postgres, from * 2..from * 2 + 2).await;
        let before = stands(&postgres).await.0;
        eventually("some are handled", LIMIT, async || (stands(&postgres).await.0 > before).then_some(()))
            .await;
        fleet.kill_one().await;
    }
    until(&postgres, (EFFECTS - held() - 5, held(), 5)).await;
    for (place, (key, n)) in DYING.iter().enumerate() {
        let name = format!("key-{key}-{n}");
        if place < DISCARDED {
            run_ok(env.database_url(), &["inbox", "dead", "discard", "--key", &name]).await;
        } else {
            postgres.execute("DELETE FROM tried WHERE key = 'key-' || $1::int", &[key]).await.unwrap();
            let retry = ["inbox", "dead", "retry", "--nats-url", env.nats_url(), "--key", &name];
            run_ok(env.database_url(), &retry).await;
        }
        fleet.kill_one().await;
    }
    let discarded = i64::try_from(DISCARDED).unwrap();
    until(&postgres, (EFFECTS - discarded, 0, 0)).await;
    assert_in_order(&postgres).await;
}

/// Each ordering key has its messages in order, without the one that was discarded.
async fn assert_in_order(client: &Client) {
    let mut found: BTreeMap<String, Vec<i32>> = BTreeMap::new();
    for row in client.query("SELECT key, n FROM effect ORDER BY id", &[]).await.unwrap() {
        found.entry(row.get(0)).or_default().push(row.get(1));
    }
    assert_eq!(found.len(), usize::try_from(KEYS).unwrap());
    for (key, numbers) in found {
        let discarded = DYING[..DISCARDED].iter().find(|(dying, _)| key == format!("key-{dying}"));
        let expected: Vec<i32> =
            (1..=EACH).filter(|n| discarded.is_none_or(|(_, dying)| dying + 1 != *n)).collect();
        assert_eq!(numbers, expected, "{key}");
    }
}
