//! A stream that comes back with less while a relay asks for it.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering::SeqCst},
};

use async_nats::Client;
use futures_util::StreamExt as _;
use oncebox_tests::TestEnv;
use tokio::task::JoinSet;

use super::{Broker, lose_of};
use crate::relay::support::{Running, assert_delivered, await_messages, enqueue, stored, with};

const API: &str = "ASKED.API";
const UNAVAILABLE: &str =
    r#"{"error":{"code":503,"err_code":10008,"description":"JetStream system temporarily unavailable"}}"#;

/// Hands questions below `API` on to JetStream, and counts those of a kind. The answer to one of
/// these, by its number, is that JetStream is not there yet, as right after its start.
async fn answer(client: Client, kind: &str, refused: u32, asked: Arc<AtomicU32>) {
    let mut questions = client.subscribe(format!("{API}.>")).await.unwrap();
    client.flush().await.unwrap();
    while let Some(question) = questions.next().await {
        let Some(reply) = question.reply else { continue };
        let is_refused = question.subject.contains(kind) && asked.fetch_add(1, SeqCst) + 1 == refused;
        let answer = if is_refused {
            UNAVAILABLE.into()
        } else {
            let place = question.subject.as_str().replace(API, "$JS.API");
            client.request(place, question.payload).await.unwrap().payload
        };
        client.publish(reply, answer).await.unwrap();
    }
}

/// One message of an ordering key survives, one is lost, and others wait. One question about the
/// stream fails: the lost message comes before the others all the same.
async fn assert_losses_come_first(kind: &'static str, refused: u32) {
    let env = TestEnv::new().await;
    let mut broker = Broker::start(&env).await;
    let mut expected = lose_of(&env, &mut broker, [("a", 0..1, 1), ("a", 1..2, 1)]).await;
    broker.nats.resume().await.unwrap();
    expected.extend(enqueue(&env.pg().await, "orders.placed", "a", 2..10, 1).await);
    let client = async_nats::connect(broker.nats.url()).await.unwrap();
    let (asked, mut answering) = (Arc::new(AtomicU32::new(0)), JoinSet::new());
    answering.spawn(answer(client, kind, refused, Arc::clone(&asked)));
    let relay = Running::start(&with(&broker.values, [("nats-api-prefix", API)]));
    let stream = broker.stream("ORDERS").await;
    await_messages(&stream, expected.len()).await;
    relay.stop().await;
    assert!(asked.load(SeqCst) > refused, "it was not asked again");
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0, "copies");
}

/// Whether the stream can be reached is answered: the relay must not take that for a stream that
/// cannot be asked.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_could_not_be_asked_a_moment_ago_gets_its_losses_first() {
    assert_losses_come_first("STREAM.INFO", 1).await;
    assert_losses_come_first("STREAM.MSG.GET", 1).await;
}

/// The first look at the message that survived finds the loss; the second one is to note it.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_fails_while_its_losses_are_noted_is_looked_at_again_at_once() {
    assert_losses_come_first("STREAM.MSG.GET", 2).await;
}
