//! Large payloads in the consumer in Rust; `relay::large` has lost and replaced objects.

use oncebox_inbox::Consumer;
use oncebox_tests::{Log, eventually};

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
    let (log, _guard) = Log::of_this_thread();
    let client = async_nats::connect(nats.url()).await.unwrap();
    let consumer = Consumer::new(async_nats::jetstream::new(client), env.name(), "d");
    let handler = Does::effect();
    let running = Running::start(consumer, inbox(&env), handler.clone());
    let asks_again = async || (log.count("a payload cannot be fetched now") >= 2).then_some(());
    eventually("it is asked for again", LIMIT, asks_again).await;
    running.stop().await;
    let attempts = count(&env, "oncebox.inbox_attempt").await;
    assert_eq!((handler.runs(), attempts, dead_letters(&env).await), (0, 0, Vec::new()));
}
