//! A copy or a dead letter that an operator makes of a failing message has its headers unchanged.

use async_nats::{HeaderMap, jetstream::consumer::pull};
use futures_util::StreamExt as _;
use oncebox_tests::TestEnv;
use serde_json::{Value, json};

use super::{act, mendable, patient, rows};
use crate::{
    inbox::{
        consumer::{Running, consumer},
        support::stream_environment,
    },
    relay::process::run_ok,
};

/// A name may occur more than once, and in more than one writing.
#[tokio::test]
async fn a_copy_and_a_letter_have_every_value_of_a_header() {
    let env = stream_environment().await;
    let jetstream = env.jetstream().await;
    for n in [0, 2] {
        let mut headers = HeaderMap::new();
        headers.insert("Idempotency-Key", format!("k{n}"));
        for (name, value) in [("Via", "a"), ("Via", "b: c"), ("via", "d"), ("VIA", "")] {
            headers.append(name, value);
        }
        let payload = format!("{{\"n\":{n}}}").into();
        jetstream.publish_with_headers(env.subject("s"), headers, payload).await.unwrap().await.unwrap();
    }
    let running = Running::start(consumer(&env).await, patient(&env), mendable().0);
    rows(&env, 2).await;
    act(&env, "bury", &["--key", "k2"]).await;
    let letter = run_ok(env.database_url(), &["inbox", "dead", "show", "1", "--json"]).await;
    let letter: Value = serde_json::from_str(&letter).unwrap();
    let of = |name: &str| letter["headers"][name].clone();
    assert_eq!(of("Via"), json!(["a", "b: c"]), "{letter}");
    assert_eq!((of("via"), of("VIA")), (json!("d"), json!("")), "{letter}");

    act(&env, "retry", &["--key", "k0"]).await;
    run_ok(env.database_url(), &["inbox", "dead", "retry", "--id", "1", "--nats-url", env.nats_url()]).await;
    running.stop().await;
    let mut copies = received(&env, 4).await;
    for headers in copies.drain(2..) {
        let of = |name: &str| {
            let values = headers.get_all(name).map(|value| value.as_str().to_owned());
            values.collect::<Vec<_>>().join("|")
        };
        assert_eq!(["Via", "via", "VIA"].map(of), ["a|b: c", "d", ""], "{headers:?}");
    }
}

/// The headers of the messages of the stream, as a consumer receives them.
async fn received(env: &TestEnv, messages: usize) -> Vec<HeaderMap> {
    let reader = env.stream().await.create_consumer(pull::Config::default()).await.unwrap();
    let found = reader.fetch().max_messages(messages).messages().await.unwrap();
    let found: Vec<_> =
        found.map(|message| message.unwrap().headers.clone().unwrap_or_default()).collect().await;
    assert_eq!(found.len(), messages);
    found
}
