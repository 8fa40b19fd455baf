//! A stream that comes back with less while a relay asks for it.

use async_nats::Client;
use futures_util::StreamExt as _;
use oncebox_tests::TestEnv;
use tokio::task::JoinSet;

use super::{Broker, lose};
use crate::relay::support::{Running, assert_delivered, await_messages, enqueue, stored, with};

const API: &str = "ASKED.API";
const UNAVAILABLE: &str =
    r#"{"error":{"code":503,"err_code":10008,"description":"JetStream system temporarily unavailable"}}"#;

/// Hands questions below `API` on to JetStream, and says to the first so many that it is not there
/// yet, as one does that has just been started.
async fn answer(client: Client, mut refused: u32) {
    let mut questions = client.subscribe(format!("{API}.>")).await.unwrap();
    client.flush().await.unwrap();
    while let Some(question) = questions.next().await {
        let Some(reply) = question.reply else { continue };
        let answer = if refused > 0 {
            refused -= 1;
            UNAVAILABLE.into()
        } else {
            let place = question.subject.as_str().replace(API, "$JS.API");
            client.request(place, question.payload).await.unwrap().payload
        };
        client.publish(reply, answer).await.unwrap();
    }
}

/// The first question fails, and whether the stream can be reached is answered: the relay must not
/// take that for a stream that cannot be asked.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_could_not_be_asked_a_moment_ago_gets_its_losses_first() {
    let env = TestEnv::new().await;
    let mut broker = Broker::start(&env).await;
    let mut expected = lose(&env, &mut broker, 100, 150).await;
    broker.nats.resume().await.unwrap();
    expected.extend(enqueue(&env.pg().await, "orders.placed", "b", 150..250, 7).await);
    let mut answering = JoinSet::new();
    answering.spawn(answer(async_nats::connect(broker.nats.url()).await.unwrap(), 1));
    let relay = Running::start(&with(&broker.values, [("nats-api-prefix", API)]));
    let stream = broker.stream("ORDERS").await;
    await_messages(&stream, expected.len()).await;
    relay.stop().await;
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0, "copies");
}
