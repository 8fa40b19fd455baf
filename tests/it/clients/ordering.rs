//! The order of messages that share an ordering key: through failing handlers, and in strict order
//! through processes that die or are suspended.

use std::time::Duration;

use async_nats::{
    HeaderMap,
    jetstream::{self, Context, stream::Stream},
};
use oncebox_tests::{Program, TestEnv, eventually};
use tokio_postgres::Client;

use super::shop::{LIMIT, Programs, lines};
use crate::relay::process::run_ok;

/// Defines the tests of each client.
macro_rules! clients {
    ($($client:ident),*) => {$(
        mod $client {
            #[tokio::test]
            async fn a_process_keeps_the_order_of_each_key() {
                super::in_one_process(stringify!($client), "1").await;
            }

            #[tokio::test]
            async fn batches_keep_the_order_of_each_key() {
                super::in_one_process(stringify!($client), "16").await;
            }

            #[tokio::test]
            async fn later_messages_wait_behind_a_dead_letter_and_follow_it() {
                super::behind_a_dead_letter([stringify!($client); 2], "1").await;
            }

            #[tokio::test]
            async fn later_messages_of_batches_wait_behind_a_dead_letter() {
                super::behind_a_dead_letter([stringify!($client); 2], "16").await;
            }

            #[tokio::test]
            async fn strict_order_survives_kills_and_suspensions() {
                super::strict([stringify!($client); 2]).await;
            }
        }
    )*};
}
clients!(python, typescript, go);

#[tokio::test]
async fn python_and_go_take_over_from_each_other() {
    strict(["python", "go"]).await;
}

#[tokio::test]
async fn go_and_typescript_take_over_from_each_other() {
    strict(["go", "typescript"]).await;
}

#[tokio::test]
async fn python_stops_a_line_and_go_runs_it() {
    behind_a_dead_letter(["python", "go"], "1").await;
}

#[tokio::test]
async fn go_stops_a_line_and_typescript_runs_it() {
    behind_a_dead_letter(["go", "typescript"], "1").await;
}

pub(super) const TABLES: &str = "
CREATE TABLE effect (id bigserial, key text NOT NULL, n int NOT NULL);
CREATE TABLE tried (key text NOT NULL, n int NOT NULL)";
const KEYS: [&str; 5] = ["a", "b", "c", "d", "e"];
/// Each effect whose number is not the next one of its key, as they were committed.
const DISORDER: &str = "SELECT key || n FROM (
    SELECT key, n, lag(n) OVER (PARTITION BY key ORDER BY id) AS before FROM effect
) AS effects WHERE n <> coalesce(before, -1) + 1";
/// PostgreSQL ends the session of a leader that is silent for 30 seconds.
const STANDBY: Duration = Duration::from_secs(40);

pub(super) async fn start(env: &TestEnv, programs: &Programs, order: &str, batch: &str) -> Program {
    let environment = [
        ("DATABASE_URL", env.database_url().to_owned()),
        ("NATS_URL", env.nats_url().to_owned()),
        ("STREAM", env.name().to_owned()),
        ("ORDER", order.to_owned()),
        ("BATCH", batch.to_owned()),
    ];
    Program::start_file(&programs.file("ordering"), &[], &environment).await.unwrap()
}

pub(super) async fn publish(env: &TestEnv, from: usize, to: usize) {
    let jetstream = jetstream::new(async_nats::connect(env.nats_url()).await.unwrap());
    for n in from..to {
        for key in KEYS {
            publish_one(env, &jetstream, key, n, n).await;
        }
    }
}

/// The message with number `of` in its key, and `n` in its payload.
pub(super) async fn publish_one(env: &TestEnv, jetstream: &Context, key: &str, of: usize, n: usize) {
    let mut headers = HeaderMap::new();
    headers.insert("Idempotency-Key", format!("{key}-{of}"));
    headers.insert("Oncebox-Ordering-Key", key);
    let payload = format!(r#"{{"key":"{key}","n":{n}}}"#);
    let publish = jetstream.publish_with_headers(env.subject("s"), headers, payload.into());
    publish.await.unwrap().await.unwrap();
}

async fn effects(client: &Client) -> i64 {
    client.query_one("SELECT count(*) FROM effect", &[]).await.unwrap().get(0)
}

async fn settled(client: &Client, stream: &Stream, count: i64) {
    eventually("all are settled", LIMIT, async || {
        let info = stream.consumer_info("ordering").await.ok()?;
        (effects(client).await >= count && info.num_ack_pending == 0).then_some(())
    })
    .await;
    assert_eq!(effects(client).await, count, "each message once");
    assert_eq!(lines(client, DISORDER).await, [""; 0], "in the order of the stream");
    assert_eq!(lines(client, "SELECT key FROM oncebox.dead_letter").await, [""; 0]);
}

async fn in_one_process(client: &str, batch: &str) {
    let Some(programs) = Programs::of(client) else { return };
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let postgres = env.pg().await;
    postgres.batch_execute(TABLES).await.unwrap();
    publish(&env, 0, 40).await;
    let mut program = start(&env, &programs, "process", batch).await;
    settled(&postgres, &stream, 200).await;
    program.stop().await.unwrap();
}

async fn retry(env: &TestEnv) {
    let command = ["inbox", "dead", "retry", "--nats-url", env.nats_url(), "--all"];
    run_ok(env.database_url(), &command).await;
}

/// One client stops the line of `b`, and is killed; the other one takes over, and runs it.
async fn behind_a_dead_letter(clients: [&str; 2], batch: &str) {
    let [Some(one), Some(other)] = clients.map(Programs::of) else { return };
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let postgres = env.pg().await;
    postgres.batch_execute(TABLES).await.unwrap();
    postgres.batch_execute("INSERT INTO tried VALUES ('b', -5)").await.unwrap();
    let until = async |effects: i64, behind: i64, dead: &str| {
        let sql = "SELECT (SELECT count(*) FROM effect), (SELECT count(*) FROM oncebox.inbox_behind),
                   (SELECT coalesce(string_agg(key, ' ' ORDER BY id), '') FROM oncebox.dead_letter)";
        eventually(&format!("{effects} effects, {behind} behind, dead: {dead}"), LIMIT, async || {
            let row = postgres.query_one(sql, &[]).await.unwrap();
            let found: (i64, i64, String) = (row.get(0), row.get(1), row.get(2));
            (found == (effects, behind, dead.to_owned())).then_some(())
        })
        .await;
    };
    publish(&env, 0, 20).await;
    let mut first = start(&env, &one, "strict", batch).await;
    until(85, 14, "b-5").await;
    publish(&env, 20, 22).await;
    until(93, 16, "b-5").await;
    first.kill().await.unwrap();
    let mut second = start(&env, &other, "strict", batch).await;
    publish(&env, 22, 24).await;
    until(101, 18, "b-5").await;
    // Another one of the line will die.
    postgres.batch_execute("UPDATE tried SET n = -9 WHERE n = -5").await.unwrap();
    retry(&env).await;
    until(105, 14, "b-9").await;
    postgres.batch_execute("DELETE FROM tried WHERE n = -9").await.unwrap();
    retry(&env).await;
    until(120, 0, "").await;
    publish(&env, 24, 26).await;
    settled(&postgres, &stream, 130).await;
    second.stop().await.unwrap();
}

async fn strict(clients: [&str; 2]) {
    let [Some(one), Some(other)] = clients.map(Programs::of) else { return };
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let postgres = env.pg().await;
    postgres.batch_execute(TABLES).await.unwrap();
    let (first, second) = (start(&env, &one, "strict", "1").await, start(&env, &other, "strict", "1").await);
    let mut processes = [first, second];
    let leads = |program: &Program| program.log().matches("this process consumes").count();
    let mut known = [0, 0];
    for round in 0..4_usize {
        let leader = eventually("one leads", LIMIT, async || {
            (0..2).find(|place| leads(&processes[*place]) > known[*place])
        })
        .await;
        let before = effects(&postgres).await;
        publish(&env, round * 40, round * 40 + 40).await;
        eventually("it handles some", LIMIT, async || (effects(&postgres).await > before + 20).then_some(()))
            .await;
        known = [leads(&processes[0]), leads(&processes[1])];
        if round % 2 == 0 {
            processes[leader].kill().await.unwrap();
            processes[leader].restart().await.unwrap();
            known[leader] = leads(&processes[leader]);
        } else {
            processes[leader].suspend(true).unwrap();
            let other = 1 - leader;
            let leads = async || (leads(&processes[other]) > known[other]).then_some(());
            eventually("the standby goes on", STANDBY, leads).await;
            processes[leader].suspend(false).unwrap();
        }
    }
    settled(&postgres, &stream, 800).await;
    for mut process in processes {
        process.stop().await.unwrap();
    }
}
