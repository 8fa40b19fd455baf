//! Transactions left open, here and in another database, prepared ones too: no other message waits
//! for them.

use std::time::Duration;

use oncebox_tests::{TestEnv, eventually};

use crate::relay::{
    support::{
        Running, assert_delivered, await_messages, client, connect, drain, enqueue, stored, values,
        values_of, with,
    },
    two_phase,
};

#[tokio::test]
async fn transactions_left_open_delay_nobody_else() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let subject = env.subject("a");
    let server = two_phase::server().await;
    let (url, elsewhere) = (server.url("postgres"), server.url("template1"));
    let (mut holder, preparer, producer) = (client(&url).await, client(&url).await, client(&url).await);
    let (other, other_preparer) = (client(&elsewhere).await, client(&elsewhere).await);
    let values = values(&url, env.nats_url());
    let relay = Running::start(&values);
    two_phase::asleep(&**producer).await;

    let held = holder.transaction().await.unwrap();
    let held_keys = enqueue(&*held, &subject, "held-", 0..30, 3).await;
    other.batch_execute("BEGIN; SELECT pg_current_xact_id()").await.unwrap();
    preparer.batch_execute("BEGIN").await.unwrap();
    let prepared_keys = enqueue(&**preparer, &subject, "prepared-", 0..30, 3).await;
    preparer.batch_execute("PREPARE TRANSACTION 'here'").await.unwrap();
    let prepare = "BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION 'there'";
    other_preparer.batch_execute(prepare).await.unwrap();

    let mut expected = Vec::new();
    for round in 0..5 {
        for n in 0..40 {
            expected.extend(enqueue(&**producer, &subject, &format!("{round}-"), n..n + 1, 4).await);
        }
        // Far longer than it takes, far shorter than the transactions stay open: they do until this
        // loop ends.
        await_messages(&stream, expected.len()).await;
    }
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0);

    held.commit().await.unwrap();
    expected.extend(held_keys);
    await_messages(&stream, expected.len()).await;
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0);
    preparer.batch_execute("COMMIT PREPARED 'here'").await.unwrap();
    expected.extend(prepared_keys);
    await_messages(&stream, expected.len()).await;
    other.batch_execute("ROLLBACK").await.unwrap();
    other_preparer.batch_execute("ROLLBACK PREPARED 'there'").await.unwrap();
    relay.stop().await;
    assert_eq!(drain(&mut connect(&values).await.worker()).await, 0);
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0);
}

/// `enqueue` draws the id first, then the transaction id. Between the two another transaction may
/// do both, commit and be read: then the snapshot of that reading says nothing of the first one,
/// not even that it is in progress.
#[tokio::test]
async fn a_transaction_that_began_after_the_snapshot_may_still_have_lower_ids() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let client = env.pg().await;
    let draw = "SELECT array_agg(nextval('oncebox.message_id_seq')) FROM generate_series(1, 7)";
    let ids: Vec<i64> = client.query_one(draw, &[]).await.unwrap().get(0);
    let mut expected = enqueue(&client, &env.subject("a"), "m-", 0..5, 1).await;
    let mut worker = connect(&with(&values_of(&env), [("batch-messages", "2")])).await.worker();
    assert_eq!(drain(&mut worker).await, 5);
    let insert =
        "INSERT INTO oncebox.message_0 (id, lane, key, subject, ordering_key, payload) OVERRIDING SYSTEM VALUE
                  SELECT n, m.lane, 'late-' || n, m.subject, 'late', ''
                  FROM oncebox.message AS m, unnest($1::bigint[]) AS n WHERE m.key = 'm-0'";
    client.execute(insert, &[&ids]).await.unwrap();
    assert_eq!(drain(&mut worker).await, 7);
    expected.extend(ids.iter().map(|id| format!("late-{id}")));
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0);
}

/// Rows of a transaction that is still open are not due, however often the relay looks.
#[tokio::test]
async fn an_open_transaction_with_many_rows_keeps_no_lane_busy() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let mut holder = env.pg().await;
    let held = holder.transaction().await.unwrap();
    let expected = enqueue(&held, &env.subject("a"), "held-", 0..3_000, 0).await;
    let producer = env.pg().await;
    enqueue(&producer, &env.subject("a"), "x-", 0..100, 0).await;
    let mut worker = connect(&values_of(&env)).await.worker();
    assert_eq!(drain(&mut worker).await, 100);
    assert_eq!(drain(&mut worker).await, 0, "idle while it stays open");
    held.commit().await.unwrap();
    // A worker that reads two rows of a lane at a time freezes and drains.
    let mut late = 0;
    eventually("all late rows", Duration::from_secs(30), async || {
        late += drain(&mut worker).await;
        (late == expected.len()).then_some(())
    })
    .await;
    assert_eq!(stored(&stream).await.len(), 3_100);
}

/// Its transaction is older than those of settled messages of its lane: the cursor's snapshot lists
/// it as in progress.
#[tokio::test]
async fn a_message_that_committed_late_counts_as_lag() {
    let env = TestEnv::new().await;
    env.stream().await;
    let (subject, producer, mut holder) = (env.subject("a"), env.pg().await, env.pg().await);
    let held = holder.transaction().await.unwrap();
    enqueue(&held, &subject, "k-", 0..3, 1).await;
    enqueue(&producer, &subject, "k-", 3..6, 1).await;
    drain(&mut connect(&values_of(&env)).await.worker()).await;
    let lag =
        env.schema.sql(&include_str!("../../../relay/src/postgres/sql/lag.sql").replace("{log}", "message"));
    let most = async || {
        let rows = producer.query(&lag, &[]).await.unwrap();
        rows.iter().map(|row| row.get::<_, f64>("lag_seconds")).fold(0.0, f64::max)
    };
    assert_eq!(most().await, 0.0, "not committed, not due");
    held.commit().await.unwrap();
    assert!(most().await > 0.0);
}
