//! Rows that no program of ours writes, in every table: commands name them or go on, and a relay
//! delivers all other messages.

use std::{collections::HashSet, time::Duration};

use futures_util::{StreamExt, stream};
use oncebox_tests::{TestEnv, oncebox, tail, within};
use tokio_postgres::Client;

use super::sagas::SAGAS;
use crate::relay::{
    process::Process,
    support::{connect, drain, enqueue, stored, values_of, with},
};

const SPOIL: &str = include_str!("hostile.sql");
/// How often a row is tried in each table.
const TRIES: i32 = 40;
/// Accounts of the relays, which they trust: a wrong one says that a message is settled which is
/// not. Commands must survive them all the same.
const ACCOUNTS: &[&str] = &[
    "cursor",
    "delayed_mover",
    "home",
    "lane",
    "late_receipt",
    "loss",
    "maintenance",
    "migration",
    "milestone",
    "outbox",
    "receipt",
    "reset",
    "segment",
];
const GOES_ON: Duration = Duration::from_secs(20);

/// Every command that reads, on keys that are there.
const COMMANDS: &[&str] = &[
    "status",
    "status --json",
    "doctor",
    "doctor --json",
    "outbox parked list",
    "outbox parked list --json",
    "outbox parked show parked-0",
    "outbox dead list --json",
    "outbox dead show parked-1 --json",
    "outbox dead retry --all --dry-run",
    "outbox dead discard --all --dry-run",
    "outbox delayed list",
    "outbox delayed list --json",
    "inbox dead list",
    "inbox dead list --json",
    "inbox dead show 1",
    "inbox dead show 2 --json",
    "inbox dead discard --all --dry-run",
    "inbox failing list",
    "inbox failing list --json",
    "inbox failing list --by-reason",
    "inbox failing list --by-reason --json",
    "inbox failing retry --all --dry-run",
    "inbox failing bury --all --dry-run",
    "outbox replay list",
    "outbox replay list --json",
    "outbox replay --all --dry-run",
    "saga list",
    "saga list --json",
    "saga list --state completed",
    "saga show 2:order",
    "saga show 3:order --json --data",
    "saga show 2:order --mermaid",
    "saga show 2:order --svg",
    "saga graph order",
    "saga graph order --svg",
    "saga retry --all --dry-run",
    "trace m-0",
    "trace m-1 --json",
    "trace 2:order",
    "trace 3:order --json",
    "trace parked-0",
    "trace later",
    "outbox resend --stream {stream} --dry-run",
    "outbox verify --stream {stream}",
    "outbox verify --stream {stream} --resend --dry-run",
    "outbox prune --dry-run",
];

/// An outbox with a row of everything that can be had without a handler.
pub(crate) async fn outbox(env: &TestEnv) -> Client {
    let (pg, _stream) = (env.pg().await, env.stream().await);
    enqueue(&pg, &env.subject("a"), "m-", 0..40, 3).await;
    enqueue(&pg, &format!("nowhere.{}", env.name()), "parked-", 0..4, 0).await;
    drain(&mut connect(&with(&values_of(env), [("attempts-max", "1")])).await.worker()).await;
    let rows = "SELECT oncebox.enqueue_at('later', 'a.b', 'p', clock_timestamp() + interval '1 hour')";
    pg.batch_execute(rows).await.unwrap();
    pg.batch_execute(SAGAS).await.unwrap();
    let (code, output, log) =
        oncebox(&["outbox", "replay", "--key", "m-3"], &[("DATABASE_URL", env.database_url())])
            .await
            .unwrap();
    assert_eq!(code, 0, "{output}{log}");
    pg.batch_execute(SPOIL).await.unwrap();
    pg
}

/// Leaves rows in these tables; returns the statements that did.
pub(crate) async fn spoil(pg: &Client, seed: f64, tables: &[String]) -> Vec<String> {
    pg.query("SELECT setseed($1)", &[&seed]).await.unwrap();
    // Rows that point nowhere: foreign keys and triggers are off, as an operator may have them.
    pg.batch_execute("SET session_replication_role = replica").await.unwrap();
    let sql = "SELECT spoil FROM pg_temp.spoil($1::text[]::regclass[], $2)";
    let rows = pg.query(sql, &[&tables, &TRIES]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// The relays' accounts, or all other tables.
pub(crate) async fn tables(pg: &Client, are_accounts: bool) -> Vec<String> {
    let sql = "SELECT 'oncebox.' || relname FROM pg_class
               WHERE relnamespace = 'oncebox'::regnamespace AND relkind = 'r' AND (relname = ANY ($1)) = $2 ORDER BY 1";
    pg.query(sql, &[&ACCOUNTS, &are_accounts]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

/// The faults of commands, a line each.
async fn failed_commands(env: &TestEnv) -> Vec<String> {
    const MARKS: [&str; 5] =
        ["panicked", "deserializ", "error retrieving column", "out of range", "db error"];
    let run = async |command: &&str| {
        let command = command.replace("{stream}", env.name());
        let arguments: Vec<&str> = command.split(' ').collect();
        let environment = [("DATABASE_URL", env.database_url()), ("NATS_URL", env.nats_url())];
        let (code, _, log) = oncebox(&arguments, &environment).await.unwrap();
        let is_bad = ![0, 1].contains(&code) || MARKS.iter().any(|mark| log.contains(mark));
        is_bad.then(|| format!("{command}: {code}: {}", tail(&log)))
    };
    stream::iter(COMMANDS).map(run).buffered(3).filter_map(async |bad| bad).collect().await
}

/// The faults of a relay: it should set aside or name the rows that it cannot use, and deliver all
/// others.
async fn failures_of_a_relay(env: &TestEnv) -> Vec<String> {
    let relay = Process::relay(&with(&values_of(env), [("http-listen", "127.0.0.1:0")]));
    let keys = enqueue(&env.pg().await, &env.subject("a"), "healthy-", 0..100, 20).await;
    let (stream, mut failures) = (env.stream().await, Vec::new());
    let delivered = within("healthy messages are delivered", GOES_ON, async || {
        let arrived: HashSet<String> = stored(&stream).await.into_iter().map(|message| message.key).collect();
        Ok(keys.iter().all(|key| arrived.contains(key)).then_some(()))
    });
    if let Err(error) = delivered.await {
        failures.extend([error.to_string(), tail(&relay.log())]);
        relay.kill().await;
        return failures;
    }
    for path in ["/metrics", "/readyz", "/livez"] {
        let (code, text) = relay.get(path).await;
        failures.extend((![200, 503].contains(&code)).then(|| format!("{path}: {code} {text}")));
    }
    if !failures.is_empty() || relay.log().contains("panicked") {
        failures.push(tail(&relay.log()));
    }
    relay.kill().await;
    failures
}

/// A case follows from its seed, a number from -1 to 1: `ONCEBOX_TEST_SEEDS=0.25,0.3` tries others.
#[tokio::test]
async fn commands_and_relays_survive_any_content_of_any_table() {
    let seeds = std::env::var_os("ONCEBOX_TEST_SEEDS").map(|seeds| seeds.into_string().unwrap());
    let seeds = seeds.unwrap_or_else(|| "0.3,0.4".to_owned());
    for seed in seeds.split(',') {
        let env = TestEnv::new().await;
        let pg = outbox(&env).await;
        let rows = spoil(&pg, seed.parse().unwrap(), &tables(&pg, false).await).await;
        assert!(rows.len() > 150, "{} rows only", rows.len());
        let mut failures = failed_commands(&env).await;
        failures.extend(failures_of_a_relay(&env).await);
        let accounts = spoil(&pg, seed.parse().unwrap(), &tables(&pg, true).await).await;
        failures.extend(failed_commands(&env).await);
        if std::env::var_os("ONCEBOX_TEST_SEEDS").is_some() && !failures.is_empty() {
            failures.extend([rows, accounts].concat());
        }
        assert!(failures.is_empty(), "seed {seed}: {}", failures.join("\n"));
    }
}
