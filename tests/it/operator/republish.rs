//! A stream that the server feeds by `republish` refuses messages that are for one stream only.

use async_nats::jetstream::stream::{Config, Republish, Source};
use oncebox_tests::{Nats, TestEnv, eventually};

use super::doctor::{doctor, found, sound, start, text_of};
use crate::relay::support::{LIMIT, connect, drain, fresh_stream, stream_config, values_of, with};

#[tokio::test]
async fn a_stream_that_is_fed_by_republish_is_found_where_one_stream_is_expected() {
    let env = TestEnv::new().await;
    let (name, copies) = (env.name(), format!("{}_copies", env.name()));
    let destination = format!("{copies}.>");
    let again = Republish { source: ">".to_owned(), destination: destination.clone(), headers_only: false };
    let config = Config { republish: Some(again), ..sound(&env) };
    let (mut stream, _pg) = start(&env, config).await;
    let mut copy = fresh_stream(env.nats_url(), stream_config(&copies, &destination)).await;
    let values = with(&values_of(&env), [("expected-stream", name)]);
    assert_eq!(drain(&mut connect(&values).await.worker()).await, 10);
    assert_eq!(stream.info().await.unwrap().state.messages, 10);

    let expecting = [("ONCEBOX_EXPECTED_STREAM", name)];
    let (code, seen) = doctor(env.database_url(), env.nats_url(), &expecting).await;
    let text = text_of(&seen, "republish");
    assert!(
        code == 1 && [name, &copies, &destination, "source"].iter().all(|part| text.contains(part)),
        "{seen}"
    );
    assert_eq!(copy.info().await.unwrap().state.messages, 0, "it has refused them");
    // Without the option nothing is refused, and nothing to find.
    assert_eq!(text_of(&doctor(env.database_url(), env.nats_url(), &[]).await.1, "republish"), "");

    // The remedy. An older server changes `republish` of no stream: it is made anew.
    if Nats::version().unwrap() < (2, 10) {
        return;
    }
    let jetstream = async_nats::jetstream::new(async_nats::connect(env.nats_url()).await.unwrap());
    jetstream.update_stream(&sound(&env)).await.unwrap();
    let source = Source { name: name.to_owned(), ..Source::default() };
    let sources = Some(vec![source]);
    let fed = Config { sources, subjects: Vec::new(), ..stream_config(&copies, &destination) };
    jetstream.delete_stream(&copies).await.unwrap();
    let mut fed = jetstream.create_stream(fed).await.unwrap();
    eventually("it takes them as a source", LIMIT, async || {
        (fed.info().await.unwrap().state.messages == 10).then_some(())
    })
    .await;
    let (_, seen) = doctor(env.database_url(), env.nats_url(), &expecting).await;
    assert!(!found(&seen).iter().any(|(_, check)| check == "republish"), "{seen}");
}
