//! Another program that publishes into the stream.

use async_nats::{HeaderMap, jetstream};

use super::Broker;

/// Messages of another program, with keys.
pub(super) async fn publish_foreign(broker: &Broker, subject: &str, total: usize) -> Vec<String> {
    let context = jetstream::new(async_nats::connect(broker.nats.url()).await.unwrap());
    let keys: Vec<String> = (0..total).map(|n| format!("foreign{n}")).collect();
    for key in &keys {
        let mut headers = HeaderMap::new();
        for (name, value) in [("Nats-Msg-Id", key.as_str()), ("Idempotency-Key", key), ("Oncebox-Id", "0")] {
            headers.insert(name, value);
        }
        let ack = context.publish_with_headers(subject.to_owned(), headers, "".into()).await.unwrap();
        ack.await.unwrap();
    }
    keys
}
