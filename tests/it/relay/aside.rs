//! Rows of set-aside messages carry them, even when the segment that they were enqueued into is
//! emptied. And the turns of the log go on, even after changes to the database by hand.

use std::time::Duration;

use async_nats::jetstream::stream::Stream;
use oncebox_relay::{Values, parts::Worker};
use oncebox_tests::{TestEnv, diagnosed, eventually};
use tokio_postgres::Client;

use super::{
    process::{run, run_ok},
    support::{
        assert_delivered, connect, drain, enqueue, fresh_stream, maintain, stored, stream_config,
        turn_the_ring, values_of, with,
    },
};

/// Enqueues messages for a subject that no stream takes, has them parked, and empties their
/// segment.
async fn parked_alone(env: &TestEnv, client: &Client, values: &Values) -> (Vec<String>, Worker) {
    let parked = enqueue(client, &env.subject("later"), "parked-", 0..6, 2).await;
    let mut worker = connect(values).await.worker();
    drain(&mut worker).await;
    empty(client).await;
    let gone = "SELECT count(*) FROM oncebox.log";
    assert_eq!(client.query_one(gone, &[]).await.unwrap().get::<_, i64>(0), 0, "their segment is emptied");
    (parked, worker)
}

/// Turns the ring until the segment of now is emptied.
async fn empty(client: &Client) {
    for _ in 0..3 {
        turn_the_ring(client).await;
    }
    client.query_opt("SELECT FROM oncebox.empty_segment(0)", &[]).await.unwrap();
}

async fn take_later(env: &TestEnv, stream: &Stream) {
    let mut config = stream.get_info().await.unwrap().config;
    config.subjects.push(env.subject("later"));
    env.jetstream().await.update_stream(config).await.unwrap();
}

async fn stream_of(env: &TestEnv) -> Stream {
    fresh_stream(env.nats_url(), stream_config(env.name(), &env.subject("taken"))).await
}

async fn all_due(client: &Client) {
    client
        .batch_execute("UPDATE oncebox.parked SET next_attempt_at = now() WHERE dead_at IS NULL")
        .await
        .unwrap();
}

/// TRUNCATE obeys no snapshot: a dump that began before it sees an empty segment.
#[tokio::test]
async fn a_dump_that_began_before_its_segment_was_emptied_has_the_message() {
    let env = TestEnv::new().await;
    let _stream = stream_of(&env).await;
    let (client, dump) = (env.pg().await, env.pg().await);
    let parked = enqueue(&client, &env.subject("later"), "parked-", 0..6, 0).await;
    drain(&mut connect(&values_of(&env)).await.worker()).await;
    dump.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1").await.unwrap();
    empty(&client).await;
    let log: i64 = dump.query_one("SELECT count(*) FROM oncebox.log", &[]).await.unwrap().get(0);
    assert_eq!(log, 0, "the dump sees the segment as it is now");
    let whole = "SELECT count(*) FROM oncebox.parked WHERE key LIKE 'parked-%' AND octet_length(payload) > 0";
    let whole: i64 = dump.query_one(whole, &[]).await.unwrap().get(0);
    assert_eq!(whole, i64::try_from(parked.len()).unwrap());
}

/// It was stored after its segment had been emptied; then the stream loses it, and an operator
/// replays it.
#[tokio::test]
async fn what_a_stream_loses_is_sent_again_though_its_segment_was_emptied() {
    let env = TestEnv::new().await;
    let stream = stream_of(&env).await;
    let client = env.pg().await;
    let (parked, mut worker) = parked_alone(&env, &client, &values_of(&env)).await;
    take_later(&env, &stream).await;
    all_due(&client).await;
    drain(&mut worker).await;
    assert_eq!(assert_delivered(&stored(&stream).await, &parked), 0);
    let known: i64 = client.query_one("SELECT count(*) FROM oncebox.message", &[]).await.unwrap().get(0);
    assert_eq!(known, 6, "each is known until its receipt is forgotten");

    stream.purge().await.unwrap();
    let name = stream.cached_info().config.name.clone();
    let lose =
        "INSERT INTO oncebox.loss (lane, stream, number, kind, sequence, lost_sequence, floor, high, snap)
                SELECT lane, $1, number, 'tail', 0, 6, floor, high, snap FROM oncebox.lane_cursor";
    client.execute(lose, &[&name]).await.unwrap();
    let seen =
        "INSERT INTO oncebox.stream (name, created, subjects, checked_at) VALUES ($1, now(), '.', now())
                ON CONFLICT (name) DO UPDATE SET subjects = '.'";
    client.execute(seen, &[&name]).await.unwrap();
    client.execute("SELECT oncebox.resend_lost(lane, $1) FROM oncebox.lane", &[&name]).await.unwrap();
    let lost: i64 = client
        .query_one("SELECT count(*) FROM oncebox.parked WHERE cause = 'lost'", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(lost, 6);
    // Under its own id, which the stream still knows: it is settled as a copy.
    drain(&mut worker).await;
    let left: i64 = client.query_one("SELECT count(*) FROM oncebox.parked", &[]).await.unwrap().get(0);
    assert_eq!(left, 0);
    run_ok(env.database_url(), &["outbox", "replay", "--all"]).await;
    drain(&mut worker).await;
    let again: Vec<String> = parked.iter().map(|key| format!("{key};r=1")).collect();
    assert_eq!(assert_delivered(&stored(&stream).await, &again), 0);
}

#[tokio::test]
async fn operators_find_and_end_what_is_set_aside_without_its_segment() {
    let env = TestEnv::new().await;
    let stream = stream_of(&env).await;
    let client = env.pg().await;
    let values = with(&values_of(&env), [("attempts-max", "1")]);
    let (parked, mut worker) = parked_alone(&env, &client, &values).await;
    let url = env.database_url();
    let shown = run_ok(url, &["outbox", "dead", "show", "parked-0"]).await;
    assert!(shown.contains(&env.subject("later")), "{shown}");
    assert!(run_ok(url, &["outbox", "dead", "list"]).await.contains("parked-0"));
    assert!(run_ok(url, &["trace", "parked-0"]).await.contains("dead"));
    run_ok(url, &["outbox", "dead", "discard", "--key", "parked-0"]).await;
    take_later(&env, &stream).await;
    run_ok(url, &["outbox", "dead", "retry", "--all"]).await;
    drain(&mut worker).await;
    let expected: Vec<String> = parked.into_iter().filter(|key| key != "parked-0").collect();
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0, "what waited behind it goes on");
}

/// As after a restore that left the tables of messages out.
#[tokio::test]
async fn a_dead_message_whose_log_came_without_rows_is_found_by_its_key() {
    let env = TestEnv::new().await;
    let _stream = stream_of(&env).await;
    let client = env.pg().await;
    enqueue(&client, &env.subject("later"), "dead-", 0..2, 0).await;
    let values = with(&values_of(&env), [("attempts-max", "1")]);
    drain(&mut connect(&values).await.worker()).await;
    client.batch_execute("TRUNCATE oncebox.message_0").await.unwrap();
    let url = env.database_url();
    for command in [&["outbox", "dead", "show"][..], &["trace"], &["why"]] {
        let (_, said, log) = run(url, &[command, &["dead-1"]].concat()).await;
        assert!(said.contains(&env.subject("later")), "{command:?}: {said}{log}");
    }
    run_ok(url, &["outbox", "dead", "discard", "--key", "dead-1"]).await;
    assert!(!run_ok(url, &["outbox", "dead", "list"]).await.contains("dead-1"));
}

/// All sequences were restarted, as `TRUNCATE .. RESTART IDENTITY` in a script does it.
#[tokio::test]
async fn a_turn_that_was_restarted_goes_on_where_it_stood() {
    let env = TestEnv::new().await;
    let _stream = env.stream().await;
    let client = env.pg().await;
    turn_the_ring(&client).await;
    turn_the_ring(&client).await;
    let first = "SELECT oncebox.enqueue('m-0', 'a', 'p')";
    client.batch_execute(first).await.unwrap();
    client.batch_execute("ALTER SEQUENCE oncebox.turn RESTART").await.unwrap();
    let refused = client.batch_execute("SELECT oncebox.enqueue('n', 'a', 'p')").await.unwrap_err();
    assert_eq!(refused.code().unwrap().code(), "55000", "{refused:?}: it is no use to try again");
    let servers = [("DATABASE_URL", env.database_url()), ("NATS_URL", env.nats_url())];
    let (code, found) = diagnosed(&servers, "turn-sequence").await.unwrap();
    assert!(code == 1 && found.len() == 1 && found[0].contains("the segments are at 2"), "{found:?}");
    connect(&values_of(&env)).await.maintainer().run_once().await.unwrap();
    assert!(diagnosed(&servers, "turn-sequence").await.unwrap().1.is_empty());
    let copy: Option<i64> = client.query_one(first, &[]).await.unwrap().get(0);
    assert_eq!(copy, None, "the key is taken");
    client.batch_execute("SELECT oncebox.enqueue('n', 'a', 'p')").await.unwrap();
}

/// A subscription has copied the tables of messages, and neither sequences nor table `segment`.
#[tokio::test]
async fn a_log_that_was_moved_keeps_its_newest_keys() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let moved = "INSERT INTO oncebox.message_5 (lane, key, subject, payload)
                 SELECT n % 16, 'm-' || n, 'a', 'p' FROM generate_series(0, 29) AS n";
    client.batch_execute(moved).await.unwrap();
    run_ok(env.database_url(), &["migrate"]).await;
    for payload in ["p", "q"] {
        let copy = client.query_one("SELECT oncebox.enqueue('m-7', 'a', $1)", &[&payload.as_bytes()]).await;
        match copy {
            Ok(row) => assert_eq!((row.get::<_, Option<i64>>(0), payload), (None, "p")),
            Err(error) => assert_eq!((error.code().unwrap().code(), payload), ("OB001", "q")),
        }
    }
}

/// Teams guard tables by a trigger. The turn ends all the same, and the doctor gives the reason.
#[tokio::test]
async fn a_step_of_maintenance_that_fails_stops_no_other() {
    let env = TestEnv::new().await;
    let _stream = env.stream().await;
    let client = env.pg().await;
    enqueue(&client, &env.subject("a"), "m-", 0..3, 0).await;
    let relay = connect(&values_of(&env)).await;
    drain(&mut relay.worker()).await;
    turn_the_ring(&client).await;
    turn_the_ring(&client).await;
    let guard = "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN RAISE EXCEPTION 'nobody truncates here'; END $$;
                 CREATE TRIGGER keep BEFORE TRUNCATE ON oncebox.message_0 EXECUTE FUNCTION keep();
                 UPDATE oncebox.segment SET began_at = now() - interval '80 days', drained_at = now() - interval '80 days'";
    client.batch_execute(guard).await.unwrap();
    let mut maintainer = relay.maintainer();
    maintain(&mut maintainer).await;
    let turn = "SELECT pg_sequence_last_value('oncebox.turn')";
    assert_eq!(client.query_one(turn, &[]).await.unwrap().get::<_, i64>(0), 3, "it has ended");
    let servers = [("DATABASE_URL", env.database_url()), ("NATS_URL", env.nats_url())];
    let (_, found) = diagnosed(&servers, "maintenance").await.unwrap();
    let found = found.join("\n");
    assert!(found.contains("empty a segment") && found.contains("nobody truncates here"), "{found}");
    client.batch_execute("DROP TRIGGER keep ON oncebox.message_0").await.unwrap();
    maintain(&mut maintainer).await;
    let left = "SELECT count(*) FROM oncebox.maintenance_fault";
    assert_eq!(client.query_one(left, &[]).await.unwrap().get::<_, i64>(0), 0);
    let left = "SELECT count(*) FROM oncebox.message_0";
    assert_eq!(client.query_one(left, &[]).await.unwrap().get::<_, i64>(0), 0);
}

/// Twelve sessions, each with a transaction of more than a second open at any time.
#[tokio::test(flavor = "multi_thread")]
async fn a_turn_ends_though_transactions_overlap_all_the_time() {
    let env = std::sync::Arc::new(TestEnv::new().await);
    let mut sessions = tokio::task::JoinSet::new();
    for n in 0..6u64 {
        let env = std::sync::Arc::clone(&env);
        sessions.spawn(async move {
            let client = env.pg().await;
            tokio::time::sleep(Duration::from_millis(n * 250)).await;
            for round in 0.. {
                let sql = format!(
                    "BEGIN; SELECT oncebox.enqueue('k-{n}-{round}', 's', 'p'); SELECT pg_sleep(1.5); COMMIT"
                );
                client.batch_execute(&sql).await.unwrap();
            }
        });
    }
    let client = env.pg().await;
    eventually("the end of the turn", Duration::from_secs(60), async || {
        let ended = client.query_one("SELECT oncebox.end_turn(0, 3000, 0)", &[]).await.unwrap();
        ended.get::<_, Option<String>>(0).is_none().then_some(())
    })
    .await;
    sessions.abort_all();
}

/// A loss of the newest messages is no reason to keep segments longer that hold none of them.
#[tokio::test]
async fn a_repaired_loss_leaves_retention_of_older_segments_alone() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let client = env.pg().await;
    let relay = connect(&values_of(&env)).await;
    let mut worker = relay.worker();
    enqueue(&client, &env.subject("a"), "old-", 0..40, 0).await;
    drain(&mut worker).await;
    turn_the_ring(&client).await;
    let between = "SELECT lane, number, floor, high, snap FROM oncebox.lane_cursor";
    client.batch_execute(&format!("CREATE TABLE stood AS {between}")).await.unwrap();
    enqueue(&client, &env.subject("a"), "new-", 0..40, 0).await;
    drain(&mut worker).await;
    let drained = "SELECT drained_at FROM oncebox.segment WHERE number = 0";
    let before: std::time::SystemTime = client.query_one(drained, &[]).await.unwrap().get(0);
    let name = stream.cached_info().config.name.clone();
    let lose = "INSERT INTO oncebox.loss (lane, stream, number, kind, sequence, lost_sequence, receipt_number, floor, high, snap)
                SELECT c.lane, $1, c.number, 'tail', 0, 1, s.number, s.floor, s.high, s.snap
                FROM oncebox.lane_cursor AS c JOIN stood AS s USING (lane)";
    client.execute(lose, &[&name]).await.unwrap();
    client.execute("SELECT oncebox.resend_lost(lane, $1) FROM oncebox.lane", &[&name]).await.unwrap();
    assert_eq!(drain(&mut worker).await, 40, "the newest come again");
    let after: std::time::SystemTime = client.query_one(drained, &[]).await.unwrap().get(0);
    assert_eq!(before, after);
}
