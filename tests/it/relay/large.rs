//! Large payloads lie in the Object Store, and their messages carry references: from `enqueue` to
//! the handler, through crashes, and when an object is lost or replaced.

use std::time::Duration;

use async_nats::jetstream::{message::StreamMessage, stream::Stream};
use data_encoding::BASE64URL;
use oncebox_relay::Values;
use oncebox_tests::{Nats, TestEnv, eventually};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio_postgres::Client;

use crate::{
    inbox::{
        consumer::{Running, consumer},
        support::{Does, dead_letters, effects, gives_up, inbox, stream_environment},
    },
    relay::{
        process::{run, run_ok},
        support::{LIMIT, connect, drain, fresh_stream, stream_config, values, values_of, with},
    },
};

pub(super) fn with_bucket(env: &TestEnv) -> Values {
    with(&values_of(env), [("object-store", env.name()), ("large-payload-bytes", "100000")])
}

/// A message of a little more than `bytes` bytes, that do not compress; its job is 7.
pub(crate) async fn enqueue_bytes(env: &TestEnv, client: &Client, key: &str, bytes: i32) {
    let sql = "SELECT oncebox.enqueue($1, $2, convert_to(
                 '{\"n\": 7, \"rest\": \"' || string_agg(md5(n::text || $1), '') || '\"}', 'UTF8'))
               FROM generate_series(1, greatest($3::int / 32, 1)) AS n";
    client.query_one(sql, &[&key, &env.subject("large"), &bytes]).await.unwrap();
}

/// A message of 5 MiB.
async fn enqueue_large(env: &TestEnv, client: &Client, key: &str) {
    enqueue_bytes(env, client, key, 5 << 20).await;
}

/// The name of the object that a message of the stream refers to.
pub(crate) async fn object_of(env: &TestEnv, key: &str) -> String {
    let messages = env.messages().await;
    let header = |message: &StreamMessage, name: &str| message.headers.get(name).unwrap().as_str().to_owned();
    let message = messages.iter().find(|message| header(message, "Idempotency-Key") == key).unwrap();
    header(message, "Oncebox-Object").split_once('/').unwrap().1.to_owned()
}

pub(crate) async fn bucket(env: &TestEnv) -> Stream {
    env.jetstream().await.get_stream(format!("OBJ_{}", env.name())).await.unwrap()
}

/// Messages of the bucket: chunks, and a description for each object.
pub(super) async fn in_bucket(env: &TestEnv) -> u64 {
    bucket(env).await.cached_info().state.messages
}

/// The number of chunks and the description of one object: its JSON is a little larger than 5 MiB.
pub(super) const ONE_OBJECT: u64 = 42;

pub(crate) async fn drained(env: &TestEnv) {
    let mut worker = connect(&with_bucket(env)).await.worker();
    eventually("the message is settled", LIMIT, async || (drain(&mut worker).await > 0).then_some(())).await;
}

#[tokio::test]
async fn a_handler_gets_the_whole_payload_and_the_stream_a_reference() {
    let env = stream_environment().await;
    enqueue_large(&env, &env.pg().await, "k").await;
    drained(&env).await;
    let messages = env.messages().await;
    let headers = &messages[0].headers;
    assert_eq!((messages.len(), messages[0].payload.len()), (1, 0));
    assert!(headers.get("Oncebox-Object").unwrap().as_str().starts_with(&format!("{}/", env.name())));
    assert_eq!(in_bucket(&env).await, ONE_OBJECT);
    let running = Running::start(consumer(&env).await, inbox(&env), Does::effect());
    eventually("the handler ran", LIMIT, async || (effects(&env).await == 1).then_some(())).await;
    running.stop().await;
    assert_eq!(dead_letters(&env).await, Vec::<String>::new());
}

/// However a payload travels, its message has one id: a relay that has no bucket sends a copy.
#[tokio::test]
async fn the_id_does_not_depend_on_the_way() {
    let env = stream_environment().await;
    let sql = "SELECT oncebox.enqueue('k', $1, convert_to(repeat('x', 200000), 'UTF8'))";
    env.pg().await.query_one(sql, &[&env.subject("large")]).await.unwrap();
    let mut worker = connect(&with_bucket(&env)).await.worker();
    let claimed = worker.claim().await.unwrap().expect("something is due");
    drop(worker.publish(claimed).await);
    drop(worker);
    let mut plain = connect(&values_of(&env)).await.worker();
    eventually("it is settled", LIMIT, async || (drain(&mut plain).await > 0).then_some(())).await;
    assert_eq!(env.messages().await.len(), 1);
}

#[tokio::test]
async fn a_crash_after_the_object_or_in_the_middle_of_it_leaves_one_object() {
    let env = stream_environment().await;
    let client = env.pg().await;
    enqueue_large(&env, &client, "k").await;
    // In the middle: the relay is gone when the first chunks are there.
    let mut worker = connect(&with_bucket(&env)).await.worker();
    let claimed = worker.claim().await.unwrap().expect("something is due");
    let some_chunks =
        eventually("some chunks are there", LIMIT, async || (in_bucket(&env).await > 0).then_some(()));
    tokio::select! {
        biased;
        () = some_chunks => {}
        _ = worker.publish(claimed) => {}
    }
    drop(worker);
    // Between the object and the message's settlement.
    let mut worker = connect(&with_bucket(&env)).await.worker();
    let published = eventually("the lane is free", LIMIT, async || {
        let claimed = worker.claim().await.unwrap()?;
        Some(worker.publish(claimed).await)
    });
    drop(published.await);
    drop(worker);
    let before = bucket(&env).await.cached_info().state.last_sequence;
    drained(&env).await;
    assert_eq!(in_bucket(&env).await, ONE_OBJECT, "no chunk is there twice");
    assert_eq!(bucket(&env).await.cached_info().state.last_sequence, before, "nothing is put again");
    assert_eq!(env.messages().await.len(), 1);
    let running = Running::start(consumer(&env).await, inbox(&env), Does::effect());
    eventually("the handler ran", LIMIT, async || (effects(&env).await == 1).then_some(())).await;
    running.stop().await;
}

/// The dead letter of a message whose object was changed by this.
async fn reason(spoil: impl AsyncFnOnce(&TestEnv, &str)) -> String {
    let env = stream_environment().await;
    enqueue_large(&env, &env.pg().await, "k").await;
    drained(&env).await;
    spoil(&env, &object_of(&env, "k").await).await;
    let handler = Does::effect();
    let inbox = crate::inbox::support::builder(&env).attempts_max(2).build().unwrap();
    let running = Running::start(consumer(&env).await, inbox, handler.clone());
    let letters = eventually("a dead letter", LIMIT, async || {
        let letters = dead_letters(&env).await;
        (!letters.is_empty()).then_some(letters)
    })
    .await;
    running.stop().await;
    assert_eq!((handler.runs(), letters.len()), (0, 1), "no handler saw it");
    letters.into_iter().next().unwrap()
}

#[tokio::test]
async fn a_replaced_or_lost_object_is_a_dead_letter_with_the_reason() {
    let replaced = reason(replace).await;
    assert!(replaced.contains("is not the one that the message names"), "{replaced}");
    let lost = reason(async |env, _| bucket(env).await.purge().await.map(drop).unwrap()).await;
    assert!(lost.contains("is not there"), "{lost}");
    let chunks = reason(async |env, _| {
        let filter = format!("$O.{}.C.>", env.name());
        bucket(env).await.purge().filter(filter).keep(3).await.map(drop).unwrap();
    })
    .await;
    assert!(chunks.contains("is not there, or not all of it"), "{chunks}");
}

/// Puts another payload of the same size in the place of an object, as any program could.
pub(crate) async fn replace(env: &TestEnv, name: &str) {
    let (jetstream, bucket) = (env.jetstream().await, bucket(env).await);
    let subject = format!("$O.{}.M.{}", env.name(), BASE64URL.encode(name.as_bytes()));
    let description = bucket.get_last_raw_message_by_subject(&subject).await.unwrap().payload;
    let mut description: Value = serde_json::from_slice(&description).unwrap();
    let mut rest = usize::try_from(description["size"].as_u64().unwrap()).unwrap();
    description["nuid"] = "other".into();
    let (mut digest, mut chunk_count) = (Sha256::new(), 0);
    while rest > 0 {
        let chunk = vec![b'x'; rest.min(500_000)];
        (rest, chunk_count) = (rest - chunk.len(), chunk_count + 1);
        digest.update(&chunk);
        let chunks = format!("$O.{}.C.other", env.name());
        jetstream.publish(chunks, chunk.into()).await.unwrap().await.unwrap();
    }
    description["chunks"] = chunk_count.into();
    description["digest"] = format!("SHA-256={}", BASE64URL.encode(&digest.finalize())).into();
    jetstream.publish(subject, description.to_string().into()).await.unwrap().await.unwrap();
}

/// The bucket is gone while the relay runs: the message is set aside as if its stream was, others
/// go on, and it is delivered when the bucket is there again.
#[tokio::test]
async fn a_lost_bucket_delays_large_messages_alone() {
    let env = stream_environment().await;
    let client = env.pg().await;
    let mut worker = connect(&with_bucket(&env)).await.worker();
    let jetstream = env.jetstream().await;
    jetstream.delete_stream(format!("OBJ_{}", env.name())).await.unwrap();
    enqueue_large(&env, &client, "k").await;
    let small = "SELECT oncebox.enqueue('small', $1, 'x')";
    client.query_one(small, &[&env.subject("small")]).await.unwrap();
    eventually("the small one arrives", LIMIT, async || {
        worker.run_once().await.unwrap();
        (env.messages().await.len() == 1).then_some(())
    })
    .await;
    let sql = "SELECT error FROM oncebox.parked";
    let reason: String = eventually("the large one is parked", LIMIT, async || {
        drain(&mut worker).await;
        client.query_opt(sql, &[]).await.unwrap().map(|row| row.get(0))
    })
    .await;
    assert!(reason.contains("there is no such bucket"), "{reason}");
    // A relay that starts makes the bucket again.
    let mut worker = connect(&with_bucket(&env)).await.worker();
    eventually("both are there", LIMIT, async || {
        drain(&mut worker).await;
        (env.messages().await.len() == 2).then_some(())
    })
    .await;
}

/// Not of its stream, but of its own: the stream would answer that it has the message already.
#[tokio::test]
async fn a_replay_is_stored_beside_the_message_and_puts_a_lost_object_again() {
    let env = stream_environment().await;
    let client = env.pg().await;
    enqueue_large(&env, &client, "k").await;
    drained(&env).await;
    bucket(&env).await.purge().await.unwrap();
    run_ok(env.database_url(), &["outbox", "replay", "--key", "k"]).await;
    drained(&env).await;
    let messages = env.messages().await;
    let object = |at: usize| messages[at].headers.get("Oncebox-Object").unwrap().as_str().to_owned();
    assert_eq!((messages.len(), object(0)), (2, object(1)));
    assert_eq!(in_bucket(&env).await, ONE_OBJECT);
    let running = Running::start(consumer(&env).await, inbox(&env), Does::effect());
    eventually("the handler ran", LIMIT, async || (effects(&env).await == 1).then_some(())).await;
    running.stop().await;
}

/// Receipts name a message as it was published, however its payload travels: the message itself, a
/// replay, one that was parked before, one of which the stream has another subject, and an event.
#[tokio::test]
async fn messages_beside_their_payloads_are_no_losses() {
    let env = stream_environment().await;
    let client = env.pg().await;
    let nats = Nats::start_with("mappings { \"mapped.*\": \"taken.$1\" }").await.unwrap();
    let url = [("nats-url", &*nats.url())];
    let stream = fresh_stream(&nats.url(), stream_config("TAKEN", "taken.>")).await;
    let relay = connect(&with(&with_bucket(&env), url)).await;
    let mut worker = relay.worker();
    let large = "SELECT oncebox.enqueue($1, $2, convert_to(repeat('x', 200000), 'UTF8'))";
    for (key, subject) in [("a", "taken.a"), ("b", "mapped.b"), ("c", "late.c")] {
        client.query_one(large, &[&key, &subject]).await.unwrap();
    }
    drain(&mut worker).await;
    run_ok(env.database_url(), &["outbox", "replay", "--key", "a"]).await;
    let mut config = stream.get_info().await.unwrap().config;
    config.subjects.push("late.>".to_owned());
    let context = async_nats::jetstream::new(async_nats::connect(nats.url()).await.unwrap());
    context.update_stream(config).await.unwrap();
    client.batch_execute("UPDATE oncebox.parked SET next_attempt_at = now()").await.unwrap();
    drain(&mut worker).await;
    client.query_one(large, &[&"d", &"taken.d"]).await.unwrap();
    let events = [("nats-url", &*nats.url()), ("cloud-events-source", "/shop")];
    let relay = connect(&with(&with_bucket(&env), events)).await;
    drain(&mut relay.worker()).await;
    assert_eq!(relay.recovery().run_once().await.unwrap(), 0);
    let known: i64 = client
        .query_one("SELECT count(*) FROM oncebox.lane_cursor WHERE acknowledged ? 'TAKEN'", &[])
        .await
        .unwrap()
        .get(0);
    assert!(known > 0, "receipts name the stream");
    assert_eq!(stream.get_info().await.unwrap().state.messages, 5);
}

/// The description of the only object.
async fn description(env: &TestEnv) -> StreamMessage {
    bucket(env).await.get_last_raw_message_by_subject(&format!("$O.{}.M.*", env.name())).await.unwrap()
}

/// A bucket may be shared: the relay compares the object with the row.
#[tokio::test]
async fn an_object_that_another_program_has_replaced_is_put_again() {
    let env = stream_environment().await;
    let client = env.pg().await;
    enqueue_large(&env, &client, "k").await;
    drained(&env).await;
    let before: Value = serde_json::from_slice(&description(&env).await.payload).unwrap();
    replace(&env, before["name"].as_str().unwrap()).await;
    run_ok(env.database_url(), &["outbox", "replay", "--key", "k"]).await;
    drained(&env).await;
    let after: Value = serde_json::from_slice(&description(&env).await.payload).unwrap();
    assert_eq!(after["digest"], before["digest"]);
    let messages = env.messages().await;
    let digests =
        messages.iter().map(|message| message.headers.get("Oncebox-Object-Digest").unwrap().as_str());
    assert!(digests.eq(std::iter::repeat_n(before["digest"].as_str().unwrap(), messages.len())));
    let running = Running::start(consumer(&env).await, inbox(&env), Does::effect());
    eventually("the handler ran", LIMIT, async || (effects(&env).await == 1).then_some(())).await;
    running.stop().await;
}

/// The message that refers to it next has all of its own life before it.
#[tokio::test]
async fn an_object_that_has_spent_half_of_its_life_is_put_again() {
    const LIFE: Duration = Duration::from_secs(15);
    let env = stream_environment().await;
    let client = env.pg().await;
    enqueue_large(&env, &client, "k").await;
    drained(&env).await;
    let first = description(&env).await;
    let mut config = bucket(&env).await.cached_info().config.clone();
    (config.max_age, config.duplicate_window) = (LIFE, LIFE);
    env.jetstream().await.update_stream(config).await.unwrap();
    let second = eventually("it is put again", LIMIT * 2, async || {
        run_ok(env.database_url(), &["outbox", "replay", "--key", "k"]).await;
        drained(&env).await;
        Some(description(&env).await).filter(|last| last.sequence > first.sequence)
    })
    .await;
    assert_eq!(in_bucket(&env).await, ONE_OBJECT);
    let age = (second.time - first.time).as_seconds_f64();
    let life = LIFE.as_secs_f64();
    assert!((life / 2.0..life).contains(&age), "put again after {age} s");
}

/// The letter has the reference, and a retry fetches the payload.
#[tokio::test]
async fn a_dead_letter_holds_the_reference_and_a_retry_gets_the_payload() {
    let env = stream_environment().await;
    let client = env.pg().await;
    enqueue_large(&env, &client, "k").await;
    drained(&env).await;
    let running = Running::start(consumer(&env).await, inbox(&env), gives_up());
    eventually("a dead letter", LIMIT, async || (!dead_letters(&env).await.is_empty()).then_some(())).await;
    running.stop().await;
    let sql = "SELECT octet_length(payload) FROM oncebox.dead_letter WHERE headers ? 'Oncebox-Object'";
    assert_eq!(client.query_one(sql, &[]).await.unwrap().get::<_, i32>(0), 0);
    let retry = ["inbox", "dead", "retry", "--nats-url", env.nats_url(), "--all"];
    run_ok(env.database_url(), &retry).await;
    let running = Running::start(consumer(&env).await, inbox(&env), Does::effect());
    eventually("the handler ran", LIMIT, async || (effects(&env).await == 1).then_some(())).await;
    running.stop().await;
}

/// `verify` names a message whose object is gone, and a relay puts it again.
#[tokio::test]
async fn verify_finds_a_lost_object_and_has_it_put_again() {
    let env = stream_environment().await;
    let client = env.pg().await;
    for key in ["a", "b", "c"] {
        enqueue_bytes(&env, &client, key, 300_000).await;
    }
    drained(&env).await;
    let verify = ["outbox", "verify", "--json", "--nats-url", env.nats_url(), "--stream", env.name()];
    run_ok(env.database_url(), &verify).await;
    let chunks = format!("$O.{}.C.{}.>", env.name(), object_of(&env, "b").await);
    bucket(&env).await.purge().filter(chunks).keep(1).await.unwrap();
    let (code, output, _) = run(env.database_url(), &verify).await;
    assert_eq!(code, 1, "{output}");
    let altered: Value = serde_json::from_str(output.lines().next().unwrap()).unwrap();
    assert_eq!((&altered["key"], &altered["differs"]), (&"b".into(), &serde_json::json!(["object"])));
    run_ok(env.database_url(), &[&verify[..], &["--resend"]].concat()).await;
    drained(&env).await;
    run_ok(env.database_url(), &verify).await;
}

/// The relay would have to hold it whole.
#[tokio::test]
async fn without_a_bucket_a_payload_of_9_mib_is_dead_and_says_what_to_set() {
    let env = stream_environment().await;
    let client = env.pg().await;
    enqueue_bytes(&env, &client, "k", 9 << 20).await;
    // A server that would take it.
    let nats = Nats::start_with("max_payload: 20000000\nmax_pending: 40000000").await.unwrap();
    fresh_stream(&nats.url(), stream_config("LARGE", &env.subject(">"))).await;
    let mut worker = connect(&values(env.database_url(), &nats.url())).await.worker();
    drain(&mut worker).await;
    let sql = "SELECT error FROM oncebox.parked WHERE dead_at IS NOT NULL";
    let reason: String = client.query_one(sql, &[]).await.unwrap().get(0);
    assert!(reason.contains("the option object-store"), "{reason}");
    run_ok(env.database_url(), &["outbox", "dead", "retry", "--all"]).await;
    drained(&env).await;
    assert_eq!(env.messages().await.len(), 1);
}
