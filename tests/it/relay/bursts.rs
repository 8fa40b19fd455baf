//! A burst of one ordering key, and a full stream, hold up no other messages and write little.

use async_nats::jetstream::stream::DiscardPolicy;
use oncebox_tests::{TestEnv, eventually};
use tokio_postgres::Client;

use crate::relay::support::{
    LIMIT, assert_delivered, connect, count, drain, enqueue, fresh_stream, stored, stream_config, values_of,
    with,
};

const BURST: i32 = 6_000;

/// A number that grows with each settlement of any lane.
async fn settlements(client: &Client) -> i64 {
    let sql = "SELECT sum(number)::bigint FROM oncebox.cursor";
    client.query_one(sql, &[]).await.unwrap().get(0)
}

async fn parked(client: &Client) -> i64 {
    client.query_one("SELECT count(*) FROM oncebox.parked", &[]).await.unwrap().get(0)
}

/// Three messages of other ordering keys in the lane of the burst.
async fn enqueue_others(client: &Client, subject: &str) -> Vec<String> {
    let sql = "SELECT oncebox.enqueue(n.key, $1, '', '{}', n.key)
               FROM (SELECT 'other-' || n AS key FROM generate_series(1, 1000) AS n) AS n
               WHERE oncebox.lane_of(n.key) = oncebox.lane_of('burst-key0') LIMIT 3";
    client.query(sql, &[&subject]).await.unwrap();
    let sql = "SELECT key FROM oncebox.message WHERE starts_with(key, 'other-') ORDER BY id";
    let others: Vec<String> = client.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(others.len(), 3, "in the lane of the burst");
    others
}

#[tokio::test]
async fn a_burst_of_one_ordering_key_delays_others_of_its_lane_by_its_reading_only() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let (client, subject) = (env.pg().await, env.subject("a"));
    let mut expected = enqueue(&client, &subject, "burst-", 0..BURST, 1).await;
    let others = enqueue_others(&client, &subject).await;
    expected.extend(others.clone());

    let mut worker = connect(&with(&values_of(&env), [("batch-messages", "300")])).await.worker();
    let mut passes = 0;
    eventually("the others are delivered", LIMIT, async || {
        worker.run_once().await.unwrap();
        passes += 1;
        let all = stored(&stream).await;
        others.iter().all(|key| all.iter().any(|one| one.key == *key)).then_some(())
    })
    .await;
    assert!(passes <= BURST / 300 + 1, "{passes} passes: as many as reading takes");
    let before = count(&stream).await;
    // 32 from the log, five in each look at parked messages, and the others themselves.
    assert!(before < 150, "{before} messages of the burst were sent before the others");
    drain(&mut worker).await;
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0, "in order, and none twice");
    assert_eq!(parked(&client).await, 0);
}

/// Whether others wait is not asked in each pass, but it is asked again.
#[tokio::test]
async fn a_burst_that_was_alone_in_its_lane_gives_way_to_those_that_come_later() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let (client, subject) = (env.pg().await, env.subject("a"));
    let mut expected = enqueue(&client, &subject, "burst-", 0..BURST, 1).await;
    let mut worker = connect(&with(&values_of(&env), [("batch-messages", "300")])).await.worker();
    worker.run_once().await.unwrap();
    assert_eq!((count(&stream).await, parked(&client).await), (300, 0), "nobody waits yet");
    let others = enqueue_others(&client, &subject).await;
    expected.extend(others.clone());
    eventually("the others are delivered", LIMIT, async || {
        worker.run_once().await.unwrap();
        let all = stored(&stream).await;
        others.iter().all(|key| all.iter().any(|one| one.key == *key)).then_some(())
    })
    .await;
    let before = count(&stream).await;
    assert!(before < 3_000, "{before} messages of the burst were sent before the others");
    drain(&mut worker).await;
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0, "in order, and none twice");
}

#[tokio::test]
async fn an_ordering_key_alone_in_its_lane_parks_nothing() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let client = env.pg().await;
    let expected = enqueue(&client, &env.subject("a"), "alone-", 0..1_000, 1).await;
    let mut worker = connect(&with(&values_of(&env), [("batch-messages", "300")])).await.worker();
    while count(&stream).await < 1_000 {
        worker.run_once().await.unwrap();
        assert_eq!(parked(&client).await, 0);
    }
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0);
}

/// Parks nothing but a message for each lane, and takes up where it was when there is room;
/// messages to another stream get past.
#[tokio::test]
async fn a_full_stream_holds_lanes_instead_of_parking_messages() {
    for others_come in [false, true] {
        let env = TestEnv::new().await;
        let mut config = stream_config(env.name(), &env.subject("full"));
        config.discard = DiscardPolicy::New;
        config.max_messages = 1;
        let full = fresh_stream(env.nats_url(), config.clone()).await;
        let other_name = format!("{}_other", env.name());
        let other = fresh_stream(env.nats_url(), stream_config(&other_name, &env.subject("other"))).await;
        let client = env.pg().await;
        let mut expected = enqueue(&client, &env.subject("full"), "m-", 0..BURST, 100).await;
        let mut worker = connect(&with(&values_of(&env), [("batch-messages", "100")])).await.worker();
        drain(&mut worker).await;
        let before = settlements(&client).await;
        expected.extend(enqueue(&client, &env.subject("full"), "m-", BURST..BURST + 1_000, 100).await);
        eventually("tried again without success, several times", LIMIT, async || {
            drain(&mut worker).await;
            let sql =
                "SELECT count(*) > 0 FROM oncebox.parked WHERE next_attempt_at > parked_at + interval '2 s'";
            client.query_one(sql, &[]).await.unwrap().get::<_, bool>(0).then_some(())
        })
        .await;
        assert_eq!(settlements(&client).await, before, "no lane has moved");
        let parked = parked(&client).await;
        assert!((1..=16).contains(&parked), "{parked} parked: one for each lane tells status the reason");
        if others_come {
            let others = enqueue(&client, &env.subject("other"), "other-", 0..50, 0).await;
            eventually("others get past", LIMIT, async || {
                drain(&mut worker).await;
                (count(&other).await == 50).then_some(())
            })
            .await;
            assert_eq!(assert_delivered(&stored(&other).await, &others), 0);
        }
        config.max_messages = -1;
        env.jetstream().await.update_stream(config).await.unwrap();
        eventually("all arrive when there is room", LIMIT * 2, async || {
            drain(&mut worker).await;
            (count(&full).await == expected.len()).then_some(())
        })
        .await;
        assert_eq!(assert_delivered(&stored(&full).await, &expected), 0, "in order, and none twice");
    }
}
