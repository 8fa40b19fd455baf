//! PostgreSQL is slow while losses are noted.

use std::time::Duration;

use oncebox_tests::TestEnv;
use tokio::time::sleep;

use super::{Broker, lose};
use crate::relay::support::{Running, assert_delivered, await_messages, enqueue, stored};

/// All lanes together are held for longer than a check may take, and none until PostgreSQL gives
/// up.
const HELD: Duration = Duration::from_secs(5);

/// Two relays wait for the lane of another one, one of them notes its loss, and both wait for the
/// next one. Until all are noted they send nothing: a newer message would overtake a lost one.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_sent_before_the_losses_of_all_lanes_are_noted() {
    let env = TestEnv::new().await;
    let mut broker = Broker::start(&env).await;
    let mut expected = lose(&env, &mut broker, 100, 150).await;
    broker.nats.resume().await.unwrap();
    let client = env.pg().await;
    expected.extend(enqueue(&client, "orders.placed", "b", 150..200, 7).await);
    let lanes = client
        .query("SELECT DISTINCT lane FROM oncebox.message WHERE key LIKE 'b%' ORDER BY lane", &[])
        .await
        .unwrap();
    assert!(lanes.len() >= 5, "{lanes:?}");
    let mut holders = Vec::new();
    for row in &lanes {
        let holder = env.pg().await;
        holder.batch_execute("BEGIN").await.unwrap();
        let hold = "SELECT FROM oncebox.lane WHERE lane = $1 FOR UPDATE";
        holder.execute(hold, &[&row.get::<_, i16>(0)]).await.unwrap();
        holders.push(holder);
    }
    let relays = [Running::start(&broker.values), Running::start(&broker.values)];
    for holder in holders {
        sleep(HELD).await;
        holder.batch_execute("COMMIT").await.unwrap();
    }
    let stream = broker.stream("ORDERS").await;
    await_messages(&stream, expected.len()).await;
    for relay in relays {
        relay.stop().await;
    }
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0, "copies");
}
