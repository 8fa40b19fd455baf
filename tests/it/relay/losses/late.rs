//! Messages that were parked and are stored later: the cursors know of each.

use async_nats::jetstream::stream::Stream;
use oncebox_relay::{Values, parts::Worker};
use oncebox_tests::{TestEnv, adversity::UNNOTED, eventually};
use tokio_postgres::Client;

use super::number;
use crate::relay::support::{LIMIT, connect, drain, fresh_stream, stream_config, values_of};

const STORED_LATE: &str = "SELECT count(*) FROM oncebox.late_receipt";

/// Two messages of one lane: the first is stored, the second is parked and due, and its subject has
/// a stream by now.
async fn one_is_parked(env: &TestEnv, values: &Values) -> (Client, Stream, Worker) {
    let stream = fresh_stream(env.nats_url(), stream_config(env.name(), &env.subject("taken"))).await;
    let client = env.pg().await;
    let enqueue = "SELECT oncebox.enqueue('later', $2, 'p'), oncebox.enqueue((
        SELECT 'k' || n FROM generate_series(1, 1000) AS n
        WHERE oncebox.lane_of('k' || n) = oncebox.lane_of('later') LIMIT 1), $1, 'p')";
    client.query_one(enqueue, &[&env.subject("taken"), &env.subject("later")]).await.unwrap();
    let mut worker = connect(values).await.worker();
    drain(&mut worker).await;
    assert_eq!(number(&client, "SELECT count(*) FROM oncebox.parked").await, 1);
    let mut config = stream.get_info().await.unwrap().config;
    config.subjects.push(env.subject("later"));
    env.jetstream().await.update_stream(config).await.unwrap();
    client.batch_execute("UPDATE oncebox.parked SET next_attempt_at = now()").await.unwrap();
    (client, stream, worker)
}

/// A claim judges by its snapshot: another relay, or a loss that was noted, may have moved the
/// cursor before the lane was locked.
#[tokio::test]
async fn in_a_lane_whose_cursor_has_moved_nothing_is_sent() {
    let env = TestEnv::new().await;
    let (client, _stream, mut worker) = one_is_parked(&env, &values_of(&env)).await;
    // The claim reads this between its snapshot and its locks.
    let wait = "ALTER TABLE oncebox.pause RENAME TO paused;
        CREATE VIEW oncebox.pause AS SELECT * FROM oncebox.paused
          WHERE pg_advisory_lock_shared(8) IS NOT NULL AND pg_advisory_unlock_shared(8);
        INSERT INTO oncebox.paused (kind, value, subjects, paused_at) VALUES ('subject', 'none', '{none}', now());
        SELECT pg_advisory_lock(8)";
    client.batch_execute(wait).await.unwrap();
    let moving = async {
        let waits =
            "SELECT FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = current_database()";
        let is_waiting = async || client.query_opt(waits, &[]).await.unwrap();
        eventually("the claim waits", LIMIT, is_waiting).await;
        client.batch_execute("UPDATE oncebox.cursor SET number = number + 1").await.unwrap();
        client.batch_execute("SELECT pg_advisory_unlock(8)").await.unwrap();
    };
    let (pass, ()) = tokio::join!(worker.run_once(), moving);
    pass.unwrap();
    assert_eq!(number(&client, UNNOTED).await, 0);
    drain(&mut worker).await;
    assert_eq!((number(&client, STORED_LATE).await, number(&client, UNNOTED).await), (1, 0));
}

/// It was stored late, and lies before the place from which its lane is sent again.
#[tokio::test]
async fn a_message_that_was_stored_late_and_is_lost_counts_in_the_preview() {
    let env = TestEnv::new().await;
    let (client, stream, mut worker) = one_is_parked(&env, &values_of(&env)).await;
    drain(&mut worker).await;
    assert_eq!(number(&client, STORED_LATE).await, 1);
    stream.delete_message(2).await.unwrap();
    let lose =
        "INSERT INTO oncebox.loss (lane, stream, number, kind, sequence, lost_sequence, floor, high, snap)
                SELECT lane, stream, number, 'tail', 1, 2, floor, high, snap
                FROM oncebox.late_receipt JOIN oncebox.lane_cursor USING (lane)";
    client.batch_execute(lose).await.unwrap();
    let seen =
        "INSERT INTO oncebox.stream (name, created, subjects, checked_at) VALUES ($1, now(), '.', now())
                ON CONFLICT (name) DO UPDATE SET subjects = '.'";
    client.execute(seen, &[&env.name()]).await.unwrap();
    let count = "SELECT messages FROM oncebox.loss, LATERAL oncebox.count_lost(lane, stream, NULL)";
    assert_eq!(number(&client, count).await, 1);
    let resend =
        "SELECT messages FROM oncebox.loss, LATERAL oncebox.resend_loss(lane, stream, NULL, 'mina', NULL)";
    assert_eq!(number(&client, resend).await, 1);
    let sent = "SELECT count(*) FROM oncebox.parked WHERE cause = 'lost' AND key = 'later'";
    assert_eq!(number(&client, sent).await, 1);
    assert_eq!(number(&client, "SELECT messages FROM oncebox.audit WHERE action = 'resend'").await, 1);
}
