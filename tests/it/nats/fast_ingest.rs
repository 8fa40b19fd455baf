//! Why the relay does not use JetStream's fast ingest: nats-server's answers to such a batch.
//!
//! If a test fails with a newer server, look at docs/durability.md again.

use async_nats::{Client, HeaderMap, Subscriber, jetstream};
use futures_util::StreamExt as _;
use oncebox_tests::Nats;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::relay::support::LIMIT;

/// A stream that takes such batches, on a server of its own.
struct Scene {
    _nats: Nats,
    client: Client,
    inbox: String,
    answers: Subscriber,
}

impl Scene {
    /// `None` where the server does not know fast ingest.
    async fn start() -> Option<Self> {
        if Nats::version().unwrap() < (2, 14) {
            return None;
        }
        let nats = Nats::start().await.unwrap();
        let client = async_nats::connect(nats.url()).await.unwrap();
        let config = json!({ "name": "S", "subjects": ["s"], "allow_batched": true });
        let created = client.request("$JS.API.STREAM.CREATE.S", config.to_string().into()).await.unwrap();
        let created: Value = serde_json::from_slice(&created.payload).unwrap();
        assert_eq!(created["config"]["allow_batched"], true, "{created}");
        let inbox = client.new_inbox();
        let answers = client.subscribe(format!("{inbox}.>")).await.unwrap();
        Some(Self { _nats: nats, client, inbox, answers })
    }

    /// Publishes a batch that is to end at its first gap, of messages with these ids and perhaps a
    /// header more; returns its last answer.
    async fn publish(&mut self, batch: &str, messages: &[(&str, Option<(&str, &str)>)]) -> Value {
        for (number, (id, header)) in (1..).zip(messages) {
            let operation = if number == messages.len() { 2 } else { usize::from(number > 1) };
            let reply = format!("{}.{batch}.500.fail.{number}.{operation}.$FI", self.inbox);
            let mut headers = HeaderMap::new();
            headers.insert("Nats-Msg-Id", *id);
            if let Some((name, value)) = header {
                headers.insert(*name, *value);
            }
            self.client.publish_with_reply_and_headers("s", reply, headers, "x".into()).await.unwrap();
        }
        loop {
            let answer = timeout(LIMIT, self.answers.next()).await.unwrap().unwrap();
            let answer: Value = serde_json::from_slice(&answer.payload).unwrap();
            if answer["batch"] == batch {
                return answer;
            }
        }
    }

    /// The ids in the stream.
    async fn stored(&self) -> Vec<String> {
        let stream = jetstream::new(self.client.clone()).get_stream("S").await.unwrap();
        let mut ids = Vec::new();
        for sequence in 1..=stream.cached_info().state.last_sequence {
            let message = stream.get_raw_message(sequence).await.unwrap();
            ids.push(message.headers.get("Nats-Msg-Id").unwrap().to_string());
        }
        ids
    }
}

/// The header is only a way to be refused at the server's second look. The limits of an account are
/// looked at twice too: with another stream that came and went there, the same happened to 3 of 303
/// batches.
#[tokio::test]
async fn a_batch_goes_on_after_a_message_that_is_refused_late_and_counts_it() {
    let Some(mut scene) = Scene::start().await else { return };
    let refused = Some(("Nats-Expected-Last-Msg-Id", "another"));
    let answer =
        scene.publish("b", &[("1", None), ("2", None), ("3", refused), ("4", None), ("5", None)]).await;
    assert_eq!((&answer["count"], &answer["seq"]), (&json!(5), &json!(4)));
    assert_eq!(scene.stored().await, ["1", "2", "4", "5"]);
}

#[tokio::test]
async fn a_batch_does_not_tell_which_messages_the_stream_knew() {
    let Some(mut scene) = Scene::start().await else { return };
    scene.publish("first", &[("1", None), ("2", None)]).await;
    let answer = scene.publish("second", &[("3", None), ("1", None), ("4", None), ("2", None)]).await;
    // The sequence is message 4's, and the last one lies at 2.
    assert_eq!((&answer["count"], &answer["seq"]), (&json!(4), &json!(4)));
    let answer = scene.publish("third", &[("1", None), ("2", None)]).await;
    assert_eq!((&answer["count"], &answer["seq"]), (&json!(2), &json!(0)));
    assert_eq!(scene.stored().await, ["1", "2", "3", "4"]);
}
