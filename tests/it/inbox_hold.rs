//! What a consumer holds: for so long and no longer, and of this stream and no other.

use std::{sync::Arc, time::Duration};

use async_nats::jetstream;
use oncebox_inbox::{Consumer, Outcome};
use oncebox_tests::{TestEnv, eventually};
use tokio::sync::Semaphore;

use crate::{
    inbox_consumer::{Running, consumer, publish, settled},
    inbox_support::{Does, LIMIT, effects, inbox, insert, stream_environment},
};

/// Waits for a permit when `n` is 1; every effect counts.
fn first_waits() -> (Does, Arc<Semaphore>) {
    let permits = Arc::new(Semaphore::new(0));
    let handler = Does::new({
        let permits = Arc::clone(&permits);
        move |cx, job| {
            let permits = Arc::clone(&permits);
            Box::pin(async move {
                if job.n == 1 {
                    permits.acquire().await?.forget();
                }
                Ok(Outcome::done(insert(cx, &job).await?))
            })
        }
    });
    (handler, permits)
}

async fn impatient(env: &TestEnv) -> Consumer {
    consumer(env).await.ack_wait(Duration::from_millis(600)).hold_max(Duration::from_millis(1200))
}

/// The hard cap of the heartbeats: a handler that hangs does not keep a message for ever. PostgreSQL keeps the other
/// process's copy out as long as the first one's transaction lasts.
#[tokio::test]
async fn a_message_held_for_too_long_is_delivered_elsewhere() {
    let env = stream_environment().await;
    publish(&env.jetstream().await, env.subject("a"), "k", 1, None).await;
    let (handler, permits) = first_waits();
    let (inbox, other) = (inbox(&env), inbox(&env));
    let first = Running::start(impatient(&env).await, inbox.clone(), handler.clone());
    eventually("the handler runs", LIMIT, async || (handler.runs() == 1).then_some(())).await;
    let second = Running::start(impatient(&env).await, other.clone(), handler.clone());
    eventually("the other process has a copy", LIMIT, async || (other.counts().in_flight > 0).then_some(()))
        .await;
    permits.add_permits(1);
    settled(&env).await;
    first.stop().await;
    second.stop().await;
    assert_eq!((handler.runs(), effects(&env).await), (1, 1));
}

/// A recreated stream counts from 1 again: what is held of the old one settles nothing of the new one.
#[tokio::test]
async fn a_recreated_stream_is_consumed_from_its_beginning() {
    let env = stream_environment().await;
    let jetstream = env.jetstream().await;
    publish(&jetstream, env.subject("a"), "old", 1, None).await;
    let (handler, permits) = first_waits();
    let inbox = inbox(&env);
    let running = Running::start(consumer(&env).await, inbox.clone(), handler.clone());
    eventually("the handler runs", LIMIT, async || (handler.runs() == 1).then_some(())).await;
    jetstream.delete_stream(env.name()).await.unwrap();
    let config = jetstream::stream::Config {
        name: env.name().to_owned(),
        subjects: vec![format!("{}.>", env.name())],
        ..Default::default()
    };
    jetstream.create_stream(config).await.unwrap();
    for n in 2..=5 {
        publish(&jetstream, env.subject("a"), &format!("new-{n}"), n, None).await;
    }
    eventually("the new messages' effects", LIMIT, async || (effects(&env).await == 4).then_some(())).await;
    permits.add_permits(1);
    settled(&env).await;
    running.stop().await;
    assert_eq!(
        (effects(&env).await, inbox.counts().handled),
        (4, 4),
        "what was held of the old one is dropped"
    );
}
