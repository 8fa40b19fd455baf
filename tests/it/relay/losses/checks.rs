//! The questions of a check to a stream.

use futures_util::StreamExt as _;
use oncebox_relay::Relay;
use oncebox_tests::TestEnv;
use tokio_postgres::Client;

use super::number;
use crate::relay::support::{connect, drain, enqueue, values_of};

/// Makes a check; returns how many losses it found, and for how many messages it asked the stream.
async fn check(env: &TestEnv, relay: &Relay) -> (usize, usize) {
    let nats = env.nats().await;
    let subject = format!("$JS.API.STREAM.MSG.GET.{}", env.name());
    let mut questions = nats.subscribe(subject.clone()).await.unwrap();
    // All messages before one's own have come through the server before it.
    let mut asked_until = async |end: &'static str| {
        nats.publish(subject.clone(), end.into()).await.unwrap();
        let mut asked = 0;
        while questions.next().await.unwrap().payload != end.as_bytes() {
            asked += 1;
        }
        asked
    };
    asked_until("begin").await;
    let found = relay.recovery().run_once().await.unwrap();
    (found, asked_until("end").await)
}

/// A relay that has delivered messages of several lanes; and how many these are.
async fn delivered() -> (TestEnv, Client, Relay, i64) {
    let env = TestEnv::new().await;
    env.stream().await;
    let client = env.pg().await;
    let relay = connect(&values_of(&env)).await;
    enqueue(&client, &env.subject("x"), "a", 0..60, 17).await;
    drain(&mut relay.worker()).await;
    let lanes = number(&client, "SELECT count(*) FROM oncebox.cursor WHERE acknowledged <> '{}'").await;
    (env, client, relay, lanes)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_asks_only_for_what_has_moved_since_the_last_one() {
    let (env, client, relay, lanes) = delivered().await;
    assert!(lanes > 4, "{lanes}");
    let (found, asked) = check(&env, &relay).await;
    assert!(found == 0 && asked as i64 >= lanes, "the first check asks for all: {asked}");
    let a_minute_later = "UPDATE oncebox.cursor SET settled_at = settled_at - interval '1 minute';
                          UPDATE oncebox.receipt SET at = at - interval '1 minute'";
    client.batch_execute(a_minute_later).await.unwrap();
    assert_eq!(check(&env, &relay).await, (0, 1), "the highest shows that all are there");
    // The highest is another message, and so is one below it.
    let lost =
        "UPDATE oncebox.cursor SET acknowledged = jsonb_set(acknowledged, ARRAY[$1::text, '1'], '\"none\"')
                WHERE lane IN (
                  SELECT lane FROM oncebox.cursor WHERE acknowledged <> '{}'
                  ORDER BY (acknowledged -> $1::text ->> 0)::bigint DESC LIMIT 2
                )";
    assert_eq!(client.execute(lost, &[&env.name()]).await.unwrap(), 2);
    let (found, asked) = check(&env, &relay).await;
    assert!(found == 2 && asked as i64 > lanes, "then each is asked for: {found}, {asked}");
}

/// The clock was ahead at the last check: messages that it calls looked at may have come since.
#[tokio::test(flavor = "multi_thread")]
async fn a_check_in_the_future_does_not_count() {
    let (env, client, relay, lanes) = delivered().await;
    check(&env, &relay).await;
    client.batch_execute("UPDATE oncebox.stream SET checked_at = now() + interval '1 hour'").await.unwrap();
    let (_, asked) = check(&env, &relay).await;
    assert!(asked as i64 >= lanes, "{asked} of {lanes}");
}

/// Checks failed until more receipts came than a check usually finds: the loss lies below the
/// newest of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_loss_below_many_receipts_is_found() {
    let (env, client, relay, _) = delivered().await;
    check(&env, &relay).await;
    let receipts = "INSERT INTO oncebox.receipt (lane, stream, number, sequence, message_id, floor, high, snap, system_identifier)
                    SELECT r.lane, r.stream, r.number + n, r.sequence, CASE WHEN n > 1 THEN r.message_id ELSE 'lost' END,
                           r.floor, r.high, r.snap, r.system_identifier
                    FROM (SELECT * FROM oncebox.receipt WHERE sequence > 0 ORDER BY lane, number DESC LIMIT 1) AS r,
                         generate_series(1, 600) AS n";
    assert_eq!(client.execute(receipts, &[]).await.unwrap(), 600);
    assert_eq!(check(&env, &relay).await.0, 1);
}
