//! Canaries beside trouble: relays that die, answers that are lost, rows that others change.

use std::{net::SocketAddr, time::Duration};

use oncebox_tests::{Nats, Proxy, TestEnv, eventually};
use tokio_postgres::{Client, error::SqlState};
use tokio_util::sync::CancellationToken;

use super::canary::{begin, bury, comes_to, consume, reason, retries, stands, stored, take_steps};
use crate::{
    inbox::{
        consumer::{Running, consumer},
        lines::{breakable, broken, strict, until},
        order::{assert_in_order, lines, publish_lines},
        support::{LIMIT, builder, effects, inbox, stream_environment},
    },
    relay::{
        process::{Process, run_ok},
        support::{connect, drain, enqueue, stream_config, values, values_of, with},
    },
};

/// How many sessions have published a letter, or are about to, and have not committed.
async fn open_steps(client: &Client) -> i64 {
    let sql = "SELECT count(*) FROM pg_stat_activity
               WHERE datname = current_database() AND state = 'idle in transaction' AND query LIKE '%take_canary_step%'";
    client.query_one(sql, &[]).await.unwrap().get(0)
}

/// The relay has published the letter, or not, and is killed before its commit.
#[tokio::test]
async fn a_relay_killed_in_a_step_leaves_it_to_the_next_one() {
    let env = stream_environment().await;
    let mut nats = Nats::start().await.unwrap();
    let client = bury(&env, 3).await;
    let own = async_nats::connect(nats.url()).await.unwrap();
    let stream = async_nats::jetstream::new(own.clone())
        .create_stream(stream_config(env.name(), &env.subject(">")))
        .await
        .unwrap();
    let relay = Process::relay(&values(env.database_url(), &nats.url()));
    eventually("the relay is at work", LIMIT, async || {
        let sql = "SELECT count(*) FROM oncebox.relay";
        (client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) == 1).then_some(())
    })
    .await;
    nats.suspend(true).await;
    begin(env.database_url(), &["--all"]).await;
    eventually("a step is open", LIMIT, async || (open_steps(&client).await == 1).then_some(())).await;
    relay.kill().await;
    nats.suspend(false).await;
    eventually("PostgreSQL has noticed", LIMIT, async || (open_steps(&client).await == 0).then_some(()))
        .await;
    assert_eq!((stands(&client).await.as_str(), retries(&client).await), ("running 3 0 0 0 0", 0));
    let durable = oncebox_inbox::Consumer::new(async_nats::jetstream::new(own), env.name(), "d");
    let running = Running::start(durable, inbox(&env), breakable());
    let relay = Process::relay(&values(env.database_url(), &nats.url()));
    comes_to(&client, "done 0 0 3 0 0").await;
    relay.kill().await;
    running.stop().await;
    let copies = stream.get_info().await.unwrap().state.messages;
    assert!((3..=4).contains(&copies), "{copies}");
    assert_eq!((retries(&client).await, effects(&env).await), (3, 3));
}

/// The commit of a step reaches PostgreSQL, or not; the relay never learns which.
async fn loses_a_commit(reaches: bool) {
    let env = stream_environment().await;
    let client = bury(&env, 12).await;
    begin(env.database_url(), &["--all"]).await;
    let direct: tokio_postgres::Config = env.database_url().parse().unwrap();
    let proxy = Proxy::start(SocketAddr::from(([127, 0, 0, 1], direct.get_ports()[0]))).await;
    let url = format!("postgres://postgres@127.0.0.1:{}/{}", proxy.port(), direct.get_dbname().unwrap());
    let relay = connect(&values(&url, env.nats_url())).await;
    // The step stands before the letter until the trap is set.
    let mut other = env.pg().await;
    let holding = other.transaction().await.unwrap();
    holding.batch_execute("SELECT FROM oncebox.dead_letter WHERE id = 1 FOR UPDATE").await.unwrap();
    let (mut steps, never) = (relay.canaries(), CancellationToken::new());
    let (failed, ()) = tokio::join!(steps.run_once(&never), async {
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        eventually("it waits", LIMIT, async || {
            (client.query_one(waits, &[]).await.unwrap().get::<_, i64>(0) == 1).then_some(())
        })
        .await;
        proxy.cut_when_client_sends(b"COMMIT", reaches);
        holding.rollback().await.unwrap();
    });
    failed.unwrap_err();
    assert_eq!((proxy.is_armed(), stored(&env).await), (false, 1), "it was sent");
    let expected = if reaches { "running 11 1 0 0 0" } else { "running 12 0 0 0 0" };
    comes_to(&client, expected).await;
    let running = Running::start(consumer(&env).await, inbox(&env), breakable());
    eventually("it is done", LIMIT, async || {
        take_steps(&relay).await;
        (stands(&client).await == "done 0 0 12 0 0").then_some(())
    })
    .await;
    running.stop().await;
    assert_eq!((retries(&client).await, effects(&env).await), (12, 12));
}

#[tokio::test]
async fn a_commit_that_never_arrives_is_made_again() {
    loses_a_commit(false).await;
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_not_made_twice() {
    loses_a_commit(true).await;
}

#[tokio::test]
async fn rows_that_somebody_else_changes_are_skipped_and_counted() {
    let env = stream_environment().await;
    let (client, url) = (bury(&env, 9).await, env.database_url());
    begin(url, &["--all"]).await;
    run_ok(url, &["inbox", "dead", "discard", "--id", "1"]).await;
    run_ok(url, &["inbox", "dead", "retry", "--id", "3", "--nats-url", env.nats_url()]).await;
    // It died again meanwhile, under its own id as letters of a line do: it is another row.
    client.batch_execute("UPDATE oncebox.dead_letter SET created_at = now() WHERE id = 4").await.unwrap();
    let relay = connect(&values_of(&env)).await;
    take_steps(&relay).await;
    assert_eq!(stands(&client).await, "running 7 1 0 0 1", "the next one took its place");
    consume(&env, 2).await;
    take_steps(&relay).await;
    assert_eq!(stands(&client).await, "running 0 5 1 0 3");
    consume(&env, 7).await;
    take_steps(&relay).await;
    assert_eq!(stands(&client).await, "done 0 0 6 0 3");
}

/// It died again, and was discarded before any relay looked.
#[tokio::test]
async fn a_row_that_died_again_and_was_discarded_since_has_failed() {
    let env = stream_environment().await;
    let (client, url) = (bury(&env, 2).await, env.database_url());
    broken(&env, &[1]).await;
    begin(url, &["--all"]).await;
    let relay = connect(&values_of(&env)).await;
    take_steps(&relay).await;
    let running = Running::start(consumer(&env).await, inbox(&env), breakable());
    let died = "SELECT id FROM oncebox.dead_letter WHERE key = 'k1'";
    let id: i64 = eventually("it died", LIMIT, async || {
        client.query_opt(died, &[]).await.unwrap().map(|row| row.get(0))
    })
    .await;
    running.stop().await;
    run_ok(url, &["inbox", "dead", "discard", "--id", &id.to_string()]).await;
    take_steps(&relay).await;
    assert_eq!(stands(&client).await, "failed 1 0 0 1 0");
}

#[tokio::test]
async fn without_a_verdict_in_time_it_stops_and_a_continued_one_waits_anew() {
    let env = stream_environment().await;
    let (client, url) = (bury(&env, 2).await, env.database_url());
    let id = begin(url, &["--all", "--within", "90s"]).await;
    let relay = connect(&values_of(&env)).await;
    take_steps(&relay).await;
    let later = "UPDATE oncebox.canary_row SET retried_at = retried_at - interval '91 seconds'";
    client.batch_execute(later).await.unwrap();
    take_steps(&relay).await;
    assert_eq!(stands(&client).await, "failed 1 1 0 0 0");
    assert_eq!(reason(&client).await, "no verdict within 90 s: dead letter 1, key k1");
    run_ok(url, &["canary", "continue", &id.to_string()]).await;
    take_steps(&relay).await;
    assert_eq!(stands(&client).await, "running 0 2 0 0 0", "the first has its whole time again");
    let running = Running::start(consumer(&env).await, inbox(&env), breakable());
    eventually("it is done", LIMIT, async || {
        take_steps(&relay).await;
        (stands(&client).await == "done 0 0 2 0 0").then_some(())
    })
    .await;
    running.stop().await;
}

#[tokio::test]
async fn a_letter_that_no_stream_takes_stops_it_in_time_and_status_says_why() {
    let env = stream_environment().await;
    let (client, url) = (bury(&env, 2).await, env.database_url());
    client.batch_execute("UPDATE oncebox.dead_letter SET subject = 'nowhere.at.all'").await.unwrap();
    begin(url, &["--all", "--within", "2s"]).await;
    let relay = connect(&values_of(&env)).await;
    take_steps(&relay).await;
    assert_eq!(stands(&client).await, "running 2 0 0 0 0");
    let status = run_ok(url, &["status"]).await;
    assert!(status.contains("cannot retry its next row"), "{status}");
    eventually("it stops", LIMIT, async || {
        take_steps(&relay).await;
        (stands(&client).await == "failed 2 0 0 0 0").then_some(())
    })
    .await;
    assert!(reason(&client).await.starts_with("it could not be retried: dead letter 1, key k1: "));
    run_ok(url, &["canary", "stop", "1", "--by", "mina"]).await;
    let status = run_ok(url, &["status"]).await;
    assert!(!status.contains("anary"), "{status}");
}

#[tokio::test]
async fn letters_without_a_key_are_refused() {
    let env = stream_environment().await;
    let client = bury(&env, 2).await;
    client.batch_execute("UPDATE oncebox.dead_letter SET key = NULL WHERE id = 2").await.unwrap();
    let sql = "SELECT oncebox.begin_canary('letter', NULL, '{1,2}', 600, 'mina', NULL)";
    let refused = client.batch_execute(sql).await.unwrap_err();
    assert_eq!(refused.code(), Some(&SqlState::from_code("OB011")), "{refused}");
    assert!(refused.as_db_error().unwrap().message().contains("dead letter 2 has no key"));
}

/// A dead letter of a line, which messages wait for: they follow it in their order.
#[tokio::test]
async fn a_line_behind_a_retried_letter_keeps_its_order() {
    let env = stream_environment().await;
    broken(&env, &[3, 5]).await;
    publish_lines(&env, 0, 5).await;
    let running = Running::start(strict(&env).await, builder(&env).build().unwrap(), breakable());
    // A canary takes the letters in the order in which they died.
    until(&env, 4, 0, &["k3"]).await;
    publish_lines(&env, 5, 70).await;
    until(&env, 50, 18, &["k3", "k5"]).await;
    broken(&env, &[5]).await;
    let client = env.pg().await;
    begin(env.database_url(), &["--all"]).await;
    let relay = Process::relay(&values_of(&env));
    comes_to(&client, "failed 0 0 1 1 0").await;
    assert!(reason(&client).await.contains("key k5: no account 5"));
    until(&env, 60, 9, &["k5"]).await;
    broken(&env, &[]).await;
    begin(env.database_url(), &["--all"]).await;
    comes_to(&client, "done 0 0 1 0 0").await;
    until(&env, 70, 0, &[]).await;
    assert_in_order(&lines(&env).await);
    assert_eq!(stored(&env).await, 70, "nothing was published again");
    relay.kill().await;
    running.stop().await;
}

/// Dead messages of the outbox: good once a stream has stored them.
#[tokio::test]
async fn dead_messages_of_the_outbox_are_retried_in_steps_too() {
    let env = TestEnv::new().await;
    let (client, url) = (env.pg().await, env.database_url());
    let stream = env.stream().await;
    enqueue(&client, &format!("lost.{}", env.name()), "lost-", 0..15, 0).await;
    drain(&mut connect(&with(&values_of(&env), [("attempts-max", "1")])).await.worker()).await;
    let command = ["outbox", "dead", "retry", "--all", "--canary", "--by", "mina", "--note", "INC-7"];
    let told = run_ok(url, &command).await;
    assert!(told.starts_with("canary 1 retries them"), "{told}");
    let relay = Process::relay(&with(&values_of(&env), [("attempts-max", "1")]));
    comes_to(&client, "failed 14 0 0 1 0").await;
    let why = reason(&client).await;
    assert!(why.contains("failed again: message ") && why.contains("key lost-0: "), "{why}");
    let mut config = stream_config(env.name(), &env.subject(">"));
    config.subjects.push(format!("lost.{}", env.name()));
    env.jetstream().await.update_stream(config).await.unwrap();
    run_ok(url, &[&command[..], &["--limit", "14"]].concat()).await;
    comes_to(&client, "done 0 0 14 0 0").await;
    assert_eq!(stream.get_info().await.unwrap().state.messages, 14);
    relay.kill().await;
}

/// A relay that may sleep stays awake for it.
#[tokio::test]
async fn a_relay_does_not_sleep_while_a_canary_is_running() {
    let env = stream_environment().await;
    let client = bury(&env, 2).await;
    begin(env.database_url(), &["--all"]).await;
    let relay = Process::relay(&with(&values_of(&env), [("sleep-after", "1s")]));
    comes_to(&client, "running 1 1 0 0 0").await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    let running = Running::start(consumer(&env).await, inbox(&env), breakable());
    comes_to(&client, "done 0 0 2 0 0").await;
    relay.kill().await;
    running.stop().await;
}
