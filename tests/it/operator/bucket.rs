//! `oncebox doctor` on the bucket for large payloads.

use std::time::Duration;

use async_nats::jetstream::stream::{Config, DiscardPolicy};
use oncebox_tests::TestEnv;

use super::doctor::{doctor, doctor_of, found, sound, start, text_of};
use crate::relay::support::{fresh_stream, stream_config};

/// It is no stream that a service should consume, and it must keep objects as long as messages.
#[tokio::test]
async fn a_bucket_that_is_missing_or_forgets_too_early_is_named() {
    let env = TestEnv::new().await;
    start(&env, sound(&env)).await;
    let bucket = [("ONCEBOX_OBJECT_STORE", env.name())];
    let look = async || doctor(env.database_url(), env.nats_url(), &bucket).await.1;
    let name = format!("OBJ_{}", env.name());
    assert!(text_of(&look().await, "stream-missing").contains(&name));
    let subjects = ["C", "M"].map(|kind| format!("$O.{}.{kind}.>", env.name()));
    let config = Config {
        subjects: subjects.to_vec(),
        allow_rollup: true,
        allow_direct: true,
        discard: DiscardPolicy::New,
        duplicate_window: Duration::from_secs(600),
        ..stream_config(&name, "")
    };
    let stream = fresh_stream(env.nats_url(), config.clone()).await;
    env.jetstream().await.publish(subjects[0].replace('>', "x"), "x".into()).await.unwrap().await.unwrap();
    let (sound, without) = (look().await, doctor_of(&env).await.1);
    assert_eq!(found(&sound), found(&without), "nothing to find: {sound}");
    env.jetstream().await.delete_stream(&name).await.unwrap();
    drop(stream);
    fresh_stream(env.nats_url(), Config { max_age: Duration::from_secs(3600), ..config }).await;
    let short = text_of(&look().await, "bucket-age");
    assert!(short.contains(&name) && short.contains("problem"), "{short}");
}
