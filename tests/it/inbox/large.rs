//! Large payloads in the consumer in Rust; `relay::large` has lost and replaced objects.

use async_nats::ConnectOptions;
use oncebox_inbox::Consumer;
use oncebox_tests::eventually;
use tokio::sync::mpsc;

use crate::{
    clients::large::unreadable,
    inbox::{
        consumer::{Running, consumer},
        support::{Does, LIMIT, count, dead_letters, effects, inbox, stream_environment},
    },
    relay::large::{drained, enqueue_bytes},
};

/// Its JSON is read to the end.
#[tokio::test]
async fn a_handler_gets_32_mib_whole() {
    let env = stream_environment().await;
    enqueue_bytes(&env, &env.pg().await, "k", 32 << 20).await;
    drained(&env).await;
    let running = Running::start(consumer(&env).await, inbox(&env), Does::effect());
    eventually("the handler ran", LIMIT, async || (effects(&env).await == 1).then_some(())).await;
    running.stop().await;
    assert_eq!(dead_letters(&env).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_store_out_of_reach_costs_no_attempt() {
    let env = stream_environment().await;
    let (nats, _) = unreadable(&env).await;
    let mut asks = 0;
    let (refused, mut refusals) = mpsc::unbounded_channel();
    let options = ConnectOptions::new().event_callback(move |event| {
        let sent = refused.send(event);
        async move { drop(sent) }
    });
    let client = options.connect(nats.url()).await.unwrap();
    let consumer = Consumer::new(async_nats::jetstream::new(client), env.name(), "d");
    let handler = Does::effect();
    let running = Running::start(consumer, inbox(&env), handler.clone());
    let asked = eventually("it asks for the payload again", LIMIT, async || {
        let refused = refusals.try_recv().ok()?;
        asks += usize::from(refused.to_string().to_lowercase().contains("permissions violation"));
        (asks == 2).then_some(())
    });
    asked.await;
    running.stop().await;
    let attempts = count(&env, "oncebox.inbox_attempt").await;
    assert_eq!((handler.runs(), attempts, dead_letters(&env).await), (0, 0, Vec::new()));
}
