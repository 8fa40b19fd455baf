//! Recordings of messages that are given up, held to the specification.

use std::sync::Arc;

use async_nats::HeaderMap;
use oncebox_tests::{Recording, eventually};

use crate::{
    inbox::{
        consumer::{Running, consumer, publish, settled},
        support::{Does, LIMIT, builder, stream_environment},
    },
    leased::support::{LEASE, Pays},
};

/// A message that no client can read comes while its key is in flight, and is set aside once the
/// key has ended with another payload; so is one whose key is given up, and a copy of it.
#[tokio::test]
async fn a_message_is_recorded_as_given_up_when_it_is_and_not_before() {
    let env = stream_environment().await;
    let (jetstream, recording) = (env.jetstream().await, Recording::new().unwrap());
    let inbox = builder(&env).trace_file(recording.file(0)).build().unwrap();
    let (handler, entered, leave) = Does::effect_that_waits();
    let running = Running::start(consumer(&env).await.concurrency(4), inbox.clone(), handler);
    publish(&jetstream, env.subject("a"), "k", 7, None).await;
    entered.notified().await;
    for key in ["k", "q", "q"] {
        let mut headers = HeaderMap::new();
        headers.insert("Idempotency-Key", key);
        let published = jetstream.publish_with_headers(env.subject("a"), headers, "no job".into()).await;
        published.unwrap().await.unwrap();
    }
    eventually("the key is in flight", LIMIT, async || (inbox.counts().in_flight > 0).then_some(())).await;
    leave.notify_one();
    settled(&env).await;
    running.stop().await;
    let expected = &["in flight", "copies", "deaths", "terms"];
    let verdict = recording.of_consumers(&env.pg().await, &[], expected).await.unwrap();
    recording.right(&verdict).unwrap();
}

/// In batches, and under leases.
#[tokio::test]
async fn a_message_whose_key_has_another_payload_is_set_aside_in_each_mode() {
    for is_leased in [false, true] {
        let env = stream_environment().await;
        let (jetstream, recording) = (env.jetstream().await, Recording::new().unwrap());
        for n in [7, 8, 7] {
            publish(&jetstream, env.subject("a"), "k", n, None).await;
        }
        let (builder, consumer) =
            (builder(&env).trace_file(recording.file(0)), consumer(&env).await.concurrency(1));
        let running = if is_leased {
            let pays = Pays::charge(&Arc::default());
            Running::start(consumer, builder.leased(LEASE).build().unwrap(), pays)
        } else {
            Running::start(consumer.batch(50), builder.build().unwrap(), Does::effect())
        };
        settled(&env).await;
        running.stop().await;
        let verdict = recording.of_consumers(&env.pg().await, &[], &["copies", "terms"]).await.unwrap();
        recording.right(&verdict).unwrap();
    }
}
