//! Retention deletes messages that were settled long ago, and no others; and the maintenance around
//! it.

use std::collections::BTreeSet;

use oncebox_relay::{Values, parts::Worker};
use oncebox_tests::{TestEnv, eventually};
use tokio_postgres::Client;

use crate::relay::{
    process::{Process, run, run_ok},
    support::{
        LIMIT, Running, a_month, a_round, age, assert_delivered, await_messages, connect, drain, enqueue,
        fresh_stream, stored, stream_config, values_of, with,
    },
};

async fn kept(client: &Client) -> BTreeSet<String> {
    let rows = client.query("SELECT key FROM oncebox.message", &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

fn set<'a>(groups: impl IntoIterator<Item = &'a Vec<String>>) -> BTreeSet<String> {
    groups.into_iter().flatten().cloned().collect()
}

/// Enqueues with one ordering key, so all messages are in one lane.
async fn enqueue_in_order(
    client: &Client,
    subject: &str,
    prefix: &str,
    count: i32,
    key: &str,
) -> Vec<String> {
    let sql =
        "SELECT oncebox.enqueue($1::text || n, $2, 'p', '{}', $4) FROM generate_series(0, $3::int - 1) AS n";
    client.execute(sql, &[&prefix, &subject, &count, &key]).await.unwrap();
    (0..count).map(|n| format!("{prefix}{n}")).collect()
}

async fn worker(values: &Values) -> Worker {
    connect(values).await.worker()
}

#[tokio::test]
async fn only_what_was_settled_long_ago_goes() {
    let env = TestEnv::new().await;
    let stream = fresh_stream(env.nats_url(), stream_config(env.name(), &env.subject("taken"))).await;
    let (client, holder) = (env.pg().await, env.pg().await);
    let values = with(&values_of(&env), [("attempts-max", "1")]);
    let (taken, url) = (env.subject("taken"), env.database_url());
    let old = enqueue_in_order(&client, &taken, "old-", 1_200, "one").await;
    let dead = enqueue_in_order(&client, &env.subject("lost"), "dead-", 1, "blocked").await;
    let waiting = enqueue_in_order(&client, &taken, "waiting-", 10, "blocked").await;
    drain(&mut worker(&values).await).await;
    assert_eq!(run_ok(url, &["outbox", "prune"]).await, "pruned 0 messages\n", "nothing is known to be old");
    assert_eq!(a_round(&values).await, 0, "just settled");
    age(&client).await;
    assert_eq!(a_round(&values).await, 0, "the first turn has ended");
    let young = enqueue(&client, &taken, "young-", 0..50, 0).await;
    drain(&mut worker(&values).await).await;
    age(&client).await;
    assert_eq!(a_round(&values).await, 0, "the turn before keeps keys unique");
    let due = enqueue(&client, &taken, "due-", 0..30, 0).await;
    age(&client).await;
    let would = run_ok(url, &["outbox", "prune", "--dry-run"]).await;
    assert_eq!(would, "would prune 1211 messages\n", "with those that are set aside too");
    let would = run_ok(url, &["outbox", "prune", "--dry-run", "--retention", "9d"]).await;
    assert_eq!(would, "would prune 0 messages\n");
    assert_eq!(a_round(&with(&values, [("retention", "forever")])).await, 0);
    assert_eq!(kept(&client).await.len(), 1_291, "counting changes nothing");
    assert_eq!(a_round(&values).await, 1_211);
    assert_eq!(kept(&client).await, set([&dead, &waiting, &young, &due]));
    assert_eq!(a_month(&client, &values).await, 50, "what is due stays, however old");
    drain(&mut worker(&values).await).await;
    let delivered: Vec<String> = [&old, &young, &due].into_iter().flatten().cloned().collect();
    assert_eq!(assert_delivered(&stored(&stream).await, &delivered), 0, "nothing that was due is lost");

    // By hand, while passes are under way everywhere.
    for _ in 0..3 {
        age(&client).await;
        holder.batch_execute("SELECT oncebox.drain_segments(), oncebox.end_turn(1, 1000, 0)").await.unwrap();
    }
    age(&client).await;
    holder.batch_execute("BEGIN; SELECT FROM oncebox.lane FOR UPDATE").await.unwrap();
    let by_hand = run_ok(url, &["outbox", "prune", "--retention", "1h", "--by", "mina", "--json"]).await;
    let by_hand: serde_json::Value = serde_json::from_str(&by_hand).unwrap();
    assert_eq!((&by_hand["messages"], &by_hand["dry_run"]), (&30.into(), &false.into()));
    holder.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(kept(&client).await, set([&dead, &waiting]), "what was never stored stays");
    let sql = "SELECT sum(messages)::bigint, min(operator) FROM oncebox.audit WHERE action = 'prune'";
    let audit = client.query_one(sql, &[]).await.unwrap();
    assert_eq!((audit.get::<_, i64>(0), audit.get::<_, &str>(1)), (30, "mina"));
    // Given up, its row goes as well, and with it the note that it was.
    run_ok(url, &["outbox", "dead", "discard", "--all"]).await;
    drain(&mut worker(&values).await).await;
    assert_eq!(assert_delivered(&stored(&stream).await, &[delivered, waiting.clone()].concat()), 0);
    a_round(&values).await;
    assert_eq!(kept(&client).await, set([&waiting]), "what was just sent may be lost");
    a_month(&client, &values).await;
    let left = "SELECT (SELECT count(*) FROM oncebox.discarded) + (SELECT count(*) FROM oncebox.message)";
    assert_eq!(client.query_one(left, &[]).await.unwrap().get::<_, i64>(0), 0);
}

#[tokio::test]
async fn neither_a_frozen_drain_nor_a_restored_dump_loses_a_message() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let (client, mut holder) = (env.pg().await, env.pg().await);
    let (values, subject) = (values_of(&env), env.subject("a"));
    let held = holder.transaction().await.unwrap();
    let late = enqueue(&held, &subject, "late-", 0..50, 1).await;
    let settled = enqueue_in_order(&client, &subject, "settled-", 30, "late-key0").await;
    assert_eq!(drain(&mut worker(&values).await).await, 30);
    assert_eq!(a_month(&client, &values).await, 0, "a transaction that has enqueued is open");
    held.commit().await.unwrap();
    worker(&with(&values, [("batch-messages", "7")])).await.run_once().await.unwrap();
    let frozen = "SELECT count(*) FROM oncebox.lane_cursor WHERE target IS NOT NULL";
    assert_eq!(client.query_one(frozen, &[]).await.unwrap().get::<_, i64>(0), 1);
    assert_eq!(a_month(&client, &values).await, 0, "a drain is under way");
    assert_eq!(drain(&mut worker(&values).await).await, 43);
    let mut expected = [settled, late].concat();
    let delivered = async || {
        let mut keys: Vec<String> = stored(&stream).await.into_iter().map(|message| message.key).collect();
        keys.sort();
        keys
    };
    expected.sort();
    assert_eq!(delivered().await, expected);

    // The database as another cluster finds it: with cursors and milestones that mean nothing
    // there.
    expected.extend(enqueue(&client, &subject, "backlog-", 0..40, 0).await);
    for table in ["cursor", "milestone"] {
        client.execute(&format!("UPDATE oncebox.{table} SET system_identifier = 1"), &[]).await.unwrap();
    }
    let milestones = "SELECT count(*), count(*) FILTER (WHERE system_identifier = 1) FROM oncebox.milestone";
    let milestones = async || {
        let row = client.query_one(milestones, &[]).await.unwrap();
        (row.get::<_, i64>(0), row.get::<_, i64>(1))
    };
    let before = milestones().await;
    assert_eq!(a_month(&client, &values).await, 0, "no lane says anything before it is reset");
    assert_eq!(milestones().await, before, "and no milestone is reached");
    assert_eq!(drain(&mut worker(&values).await).await, 40);
    expected.sort();
    assert_eq!(delivered().await, expected);
    assert_eq!(milestones().await, (0, 0), "the reset forgets them");
    assert_eq!(a_month(&client, &values).await, 120);
    assert!(kept(&client).await.is_empty());
}

/// Each time the clock is ahead for a while, at a moment when a time is written down.
#[tokio::test]
async fn a_clock_that_was_ahead_does_not_stop_retention() {
    let env = TestEnv::new().await;
    env.stream().await;
    let (client, values) = (env.pg().await, values_of(&env));
    let ahead = "UPDATE oncebox.segment
                 SET began_at = began_at + interval '1 year', drained_at = drained_at + interval '1 year';
                 UPDATE oncebox.milestone SET reached_at = reached_at + interval '1 year'";
    for n in 0..3 {
        enqueue(&client, &env.subject("a"), &format!("{n}-"), 0..40, 0).await;
        drain(&mut worker(&values).await).await;
        a_round(&values).await;
        client.batch_execute(ahead).await.unwrap();
        assert_eq!(a_round(&values).await, 0, "corrected");
        age(&client).await;
        a_round(&values).await;
    }
    a_month(&client, &values).await;
    assert!(kept(&client).await.is_empty());
}

#[tokio::test]
async fn a_running_relay_prunes_beside_publishing() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let (client, other) = (env.pg().await, env.pg().await);
    // An operator prunes by hand and hangs: that delays no message.
    other.batch_execute("BEGIN; SELECT FROM oncebox.maintenance FOR UPDATE").await.unwrap();
    let changes = [("retention", "1m"), ("http-listen", "127.0.0.1:0")];
    let relay = Process::relay(&with(&values_of(&env), changes));
    enqueue(&client, &env.subject("a"), "m-", 0..500, 3).await;
    await_messages(&stream, 500).await;
    assert_eq!(kept(&client).await.len(), 500);
    other.batch_execute("ROLLBACK").await.unwrap();
    eventually("they are pruned", LIMIT, async || {
        age(&client).await;
        kept(&client).await.is_empty().then_some(())
    })
    .await;
    eventually("and counted", LIMIT, async || {
        (relay.metric("oncebox_pruned_total").await == 500.0).then_some(())
    })
    .await;
    relay.signal("TERM").await;
    let (status, log) = relay.ended().await;
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(!log.contains("WARN"), "{log}");
}

/// A turn of a minute's retention takes ten seconds. It cannot end while a transaction that has
/// enqueued is open.
#[tokio::test]
async fn a_turn_that_cannot_end_is_measured() {
    const LATE: &str = "oncebox_turn_late_seconds";
    let env = TestEnv::new().await;
    env.stream().await;
    let (client, mut other) = (env.pg().await, env.pg().await);
    let changes = [("retention", "1m"), ("http-listen", "127.0.0.1:0")];
    let open = other.transaction().await.unwrap();
    enqueue(&open, &env.subject("a"), "m-", 0..1, 0).await;
    let begun = "UPDATE oncebox.segment SET began_at = clock_timestamp() - interval '1 hour'";
    client.batch_execute(begun).await.unwrap();
    let relay = Process::relay(&with(&values_of(&env), changes));
    let late = async |is_late: bool| {
        eventually(LATE, LIMIT, async || {
            let seconds = relay.metric(LATE).await;
            (if is_late { (3_590.0..3_650.0).contains(&seconds) } else { seconds == 0.0 }).then_some(())
        })
        .await;
    };
    late(true).await;
    open.commit().await.unwrap();
    late(false).await;
    relay.signal("TERM").await;
    let (status, log) = relay.ended().await;
    assert_eq!(status.code(), Some(0), "{log}");
}

#[tokio::test]
async fn a_relay_that_skips_dead_messages_finds_what_waits_behind_them() {
    let env = TestEnv::new().await;
    let stream = fresh_stream(env.nats_url(), stream_config(env.name(), &env.subject("taken"))).await;
    let client = env.pg().await;
    let values = with(&values_of(&env), [("attempts-max", "1")]);
    let mut expected = Vec::new();
    for key in ["a", "b", "c"] {
        enqueue_in_order(&client, &env.subject("lost"), &format!("{key}-dead-"), 1, key).await;
        expected.extend(enqueue_in_order(&client, &env.subject("taken"), &format!("{key}-"), 5, key).await);
    }
    drain(&mut worker(&values).await).await;
    assert_eq!(stored(&stream).await, []);
    // No further message of these ordering keys comes.
    let relay = Running::start(&with(&values, [("on-dead", "skip")]));
    await_messages(&stream, 15).await;
    relay.stop().await;
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0);
}

#[tokio::test]
async fn a_wrong_retention_time_exits_64() {
    let env = TestEnv::new().await;
    for (time, part) in [("forever", "nothing to prune"), ("0", "1m to 3650d"), ("7", "1m to 3650d")] {
        let (code, output, log) = run(env.database_url(), &["outbox", "prune", "--retention", time]).await;
        assert_eq!((code, output.as_str()), (64, ""), "{time}: {log}");
        assert!(log.contains("ONCEBOX_RETENTION") && log.contains(part), "{time}: {log}");
    }
}
