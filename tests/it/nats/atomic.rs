//! Atomic batches: when one breaks or is refused, no message is lost, doubled or reordered, and
//! each refusal has the same effect as without batches.

use std::{io::Write as _, time::Duration};

use async_nats::{
    header::NATS_MESSAGE_ID,
    jetstream::{self, stream::Stream},
};
use oncebox_connect::config::Sources;
use oncebox_relay::{Config, Relay, Values, parts::Worker};
use oncebox_tests::{Nats, TestEnv, eventually};
use tempfile::NamedTempFile;
use tokio_postgres::Client;

use crate::relay::{
    process::run_ok,
    support::{
        LIMIT, Running, assert_delivered, await_messages, drain, enqueue, fresh_stream, stored,
        stream_config, through_proxy, values, with,
    },
};

const SUBJECT: &str = "orders.placed";
const BATCH: &str = "Nats-Batch-Id";

/// The oldest server that knows atomic batches of messages with ids is 2.12.1.
fn is_known() -> bool {
    Nats::version().unwrap() >= (2, 12)
}

/// A relay for one stream, declared with `publish = "atomic"` and these fields.
fn declared(values: &Values, fields: &str) -> Config {
    let mut file = NamedTempFile::new().unwrap();
    let stream = "[[stream]]\nname = \"ORDERS\"\nsubjects = [\"orders.>\"]\nretention = \"limits\"\npublish = \"atomic\"\n";
    write!(file, "{stream}{fields}").unwrap();
    let values = with(values, [("config", file.path().to_str().unwrap())]);
    Config::from_sources(&Sources::read(values, [], |_| None)).unwrap()
}

/// The servers of each test: its own nats-server, and a database.
struct Scene {
    env: TestEnv,
    nats: Nats,
    client: Client,
    values: Values,
    keys: Vec<String>,
}

impl Scene {
    async fn start(jetstream: &str, config: &str) -> Self {
        let env = TestEnv::new().await;
        let nats = Nats::start_with_jetstream(jetstream, config).await.unwrap();
        let client = env.pg().await;
        let values = values(env.database_url(), &nats.url());
        Self { env, nats, client, values, keys: Vec::new() }
    }

    async fn worker(&self, fields: &str) -> Worker {
        Relay::connect(declared(&self.values, fields)).await.unwrap().worker()
    }

    async fn stream(&self) -> Stream {
        let context = jetstream::new(async_nats::connect(self.nats.url()).await.unwrap());
        context.get_stream("ORDERS").await.unwrap()
    }

    /// Enqueues messages of three ordering keys, and as many without one.
    async fn enqueue(&mut self, count: i32) {
        let prefix = format!("{}-", self.keys.len());
        let keyed = enqueue(&self.client, SUBJECT, &prefix, 0..count, 3).await;
        let prefix = format!("{prefix}free-");
        let free = enqueue(&self.client, SUBJECT, &prefix, 0..count, 0).await;
        self.keys.extend(keyed.into_iter().chain(free));
    }

    /// Publishes until a batch has been stored. The first try uses no batches if the stream
    /// answered too late that it allows them.
    async fn drain_in_batches(&mut self, worker: &mut Worker) {
        for _ in 0..LIMIT.as_secs() * 10 {
            self.enqueue(40).await;
            drain(worker).await;
            if batched(&self.stream().await).await > 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("nothing was published in a batch");
    }

    /// Checks that every message is in the stream once, and in order.
    async fn assert_all(&self) {
        assert_eq!(assert_delivered(&stored(&self.stream().await).await, &self.keys), 0, "copies");
    }
}

/// A payload that could not be put into its bucket is in no batch: an empty one would be stored in
/// its place.
#[tokio::test]
async fn a_payload_without_its_bucket_is_in_no_batch() {
    if !is_known() {
        return;
    }
    let mut scene = Scene::start("", "").await;
    scene.values = with(&scene.values, [("object-store", "B"), ("large-payload-bytes", "1000")]);
    let mut worker = scene.worker("").await;
    scene.drain_in_batches(&mut worker).await;
    let context = jetstream::new(async_nats::connect(scene.nats.url()).await.unwrap());
    context.delete_stream("OBJ_B").await.unwrap();
    let large = "SELECT oncebox.enqueue('large-' || n, $1, convert_to(repeat('x', 5000), 'UTF8'))
                 FROM generate_series(1, 20) AS n";
    scene.client.query(large, &[&SUBJECT]).await.unwrap();
    scene.enqueue(40).await;
    let parked = "SELECT FROM oncebox.parked WHERE error LIKE '%there is no such bucket%'";
    eventually("the large ones are set aside", LIMIT, async || {
        worker.run_once().await.unwrap();
        (!scene.client.query(parked, &[]).await.unwrap().is_empty()).then_some(())
    })
    .await;
    let stored = stored(&scene.stream().await).await;
    assert!(stored.iter().all(|message| !message.key.contains("large-")), "without its payload");
}

/// How many of the last thousand messages were published in batches.
async fn batched(stream: &Stream) -> usize {
    let last = stream.get_info().await.unwrap().state.last_sequence;
    let mut count = 0;
    for sequence in last.saturating_sub(1_000) + 1..=last {
        let message = stream.get_raw_message(sequence).await.unwrap();
        count += usize::from(message.headers.get(BATCH).is_some());
    }
    count
}

#[tokio::test]
async fn order_holds_in_batches_and_a_server_that_does_not_know_them_gets_none() {
    let mut scene = Scene::start("", "").await;
    let mut worker = scene.worker("").await;
    if is_known() {
        scene.drain_in_batches(&mut worker).await;
    }
    scene.enqueue(300).await;
    drain(&mut worker).await;
    scene.assert_all().await;
    let stream = scene.stream().await;
    if !is_known() {
        assert_eq!(batched(&stream).await, 0, "in batches");
    }
    // Each lane's receipt names the message that lies at its sequence.
    let sql = "SELECT (acknowledged #>> '{ORDERS,0}')::bigint, acknowledged #>> '{ORDERS,1}'
               FROM oncebox.lane_cursor WHERE acknowledged ? 'ORDERS'";
    let receipts = scene.client.query(sql, &[]).await.unwrap();
    assert!(!receipts.is_empty());
    for receipt in receipts {
        let sequence: i64 = receipt.get(0);
        let message = stream.get_raw_message(sequence.try_into().unwrap()).await.unwrap();
        assert_eq!(message.headers.get(NATS_MESSAGE_ID).unwrap().as_str(), receipt.get::<_, &str>(1));
    }
}

#[tokio::test]
async fn what_is_stored_already_is_not_stored_again_and_does_not_hold_up_the_rest() {
    let mut scene = Scene::start("", "").await;
    for _ in 0..3 {
        scene.enqueue(60).await;
        // The relay dies before it settles. The next one publishes these messages and new ones
        // together.
        let mut worker = scene.worker("").await;
        let claimed = worker.claim().await.unwrap().expect("something is due");
        drop(worker.publish(claimed).await);
    }
    scene.enqueue(60).await;
    let mut worker = scene.worker("").await;
    eventually("all is settled", LIMIT, async || {
        drain(&mut worker).await;
        let there = scene.stream().await.get_info().await.ok()?.state.messages;
        (there >= scene.keys.len() as u64).then_some(())
    })
    .await;
    scene.assert_all().await;
}

/// The connection breaks at the first message, within the batch, before its last message, and after
/// the whole batch has arrived but before its answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_breaks_at_any_step_of_a_batch_loses_and_doubles_nothing() {
    if !is_known() {
        return;
    }
    let mut scene = Scene::start("", "").await;
    let (proxy, url) = through_proxy(&scene.nats.url()).await;
    let values = with(&scene.values, [("nats-url", url.as_str())]);
    let relay = Running::start_with(declared(&values, ""));
    let steps: [(&[u8], bool); 5] = [
        (b"Nats-Batch-Sequence: 1\r\n", false),
        (b"Nats-Batch-Sequence: 2\r\n", true),
        (b"Nats-Batch-Sequence: 20\r\n", false),
        (b"Nats-Batch-Commit: 1\r\n", false),
        (b"Nats-Batch-Commit: 1\r\n", true),
    ];
    for (needle, forward) in steps {
        proxy.cut_when_client_sends(needle, forward);
        for _ in 0..LIMIT.as_secs() * 5 {
            scene.enqueue(100).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
            if !proxy.is_armed() {
                break;
            }
        }
        assert!(!proxy.is_armed(), "no batch came to {needle:?}");
    }
    await_messages(&scene.stream().await, scene.keys.len()).await;
    relay.stop().await;
    scene.assert_all().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_in_batches_loses_and_doubles_nothing() {
    let mut scene = Scene::start("", "").await;
    let relay = Running::start_with(declared(&scene.values, ""));
    // The first messages come without a batch while the stream has not said that it allows them.
    scene.enqueue(100).await;
    let context = jetstream::new(async_nats::connect(scene.nats.url()).await.unwrap());
    let made = eventually("a stream", LIMIT, async || context.get_stream("ORDERS").await.ok()).await;
    await_messages(&made, scene.keys.len()).await;
    let before = scene.keys.len();
    for _ in 0..3 {
        scene.enqueue(1_000).await;
        scene.nats.kill().await;
        scene.nats.resume().await.unwrap();
    }
    scene.enqueue(100).await;
    let stream = scene.stream().await;
    await_messages(&stream, scene.keys.len()).await;
    relay.stop().await;
    scene.assert_all().await;
    let in_batches = stored(&stream).await[before..].iter().filter(|message| message.is_batched).count();
    assert_eq!(in_batches > 0, is_known(), "{in_batches} messages of the kills came in batches");
}

/// Refused are a batch that is too large for the server, a message that is too large for the
/// stream, and messages to a full stream.
#[tokio::test]
async fn what_a_batch_is_refused_for_concerns_only_the_message_that_causes_it() {
    let limits = if is_known() { "limits { batch { max_msgs: 20 } }" } else { "" };
    let mut scene = Scene::start(limits, "").await;
    let mut worker = scene.worker("max_message_bytes = 2000\nmax_messages = 3000\n").await;
    if is_known() {
        scene.drain_in_batches(&mut worker).await;
    }
    let large =
        "SELECT oncebox.enqueue('large', 'orders.placed', convert_to(repeat('x', 3000), 'UTF8'), '{}', NULL)";
    scene.client.batch_execute(large).await.unwrap();
    scene.enqueue(100).await;
    drain(&mut worker).await;
    scene.assert_all().await;
    let parked = "SELECT count(*), count(p.dead_at) FROM oncebox.parked AS p";
    let row = scene.client.query_one(parked, &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (1, 1), "the large one is dead, and only that");
    // When the stream is full, messages wait without spending an attempt.
    let free = 3_000 - i32::try_from(scene.keys.len()).unwrap();
    let mut keys = enqueue(&scene.client, SUBJECT, "fill-", 0..free + 40, 0).await;
    eventually("the stream is full", LIMIT, async || {
        worker.run_once().await.unwrap();
        let there = scene.stream().await.get_info().await.ok()?.state.messages;
        (there == 3_000).then_some(())
    })
    .await;
    let attempts: i64 = scene
        .client
        .query_one("SELECT count(*) FROM oncebox.parked WHERE attempts > 0 AND dead_at IS NULL", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(attempts, 0);
    let mut config = scene.stream().await.get_info().await.unwrap().config;
    config.max_messages = 10_000;
    let context = jetstream::new(async_nats::connect(scene.nats.url()).await.unwrap());
    context.update_stream(config).await.unwrap();
    scene.keys.append(&mut keys);
    eventually("the rest arrives", LIMIT, async || {
        worker.run_once().await.unwrap();
        let there = scene.stream().await.get_info().await.ok()?.state.messages;
        (there >= scene.keys.len() as u64).then_some(())
    })
    .await;
    scene.assert_all().await;
}

/// Contracts are checked before a batch is put together, so that a breach takes no other message of
/// it along, and holds only its ordering key.
#[tokio::test]
async fn a_breach_in_the_midst_of_a_batch_is_dead_and_the_others_are_stored_once() {
    let mut scene = Scene::start("", "").await;
    let folder = tempfile::tempdir().unwrap();
    let contracts = folder.path().join("contracts.json");
    let rules = r#"{"contracts": [{"subject": "orders.placed", "schema": {"type": "integer"}}]}"#;
    std::fs::write(&contracts, rules).unwrap();
    scene.values = with(&scene.values, [("contracts", contracts.to_str().unwrap())]);
    let mut worker = scene.worker("").await;
    if is_known() {
        scene.drain_in_batches(&mut worker).await;
    }
    let (before, after) = (scene.keys.len(), 60);
    scene.enqueue(after).await;
    let bad = "SELECT oncebox.enqueue('bad-' || n, 'orders.placed', '\x78', '{}', 'held' || n)
               FROM generate_series(1, 20) AS n";
    scene.client.query(bad, &[]).await.unwrap();
    let behind = "SELECT oncebox.enqueue('behind-' || n, 'orders.placed', '1', '{}', 'held' || n)
                  FROM generate_series(1, 20) AS n";
    scene.client.query(behind, &[]).await.unwrap();
    scene.enqueue(after).await;
    drain(&mut worker).await;
    scene.assert_all().await;
    let batches = stored(&scene.stream().await).await[before..].iter().filter(|one| one.is_batched).count();
    assert_eq!(batches > 0, is_known(), "{batches} came in batches");
    let dead = "SELECT count(*) FROM oncebox.parked WHERE dead_at IS NOT NULL AND cause = 'contract' AND attempts = 1";
    assert_eq!(scene.client.query_one(dead, &[]).await.unwrap().get::<_, i64>(0), 20);
    run_ok(scene.env.database_url(), &["outbox", "dead", "discard", "--subject", "orders.placed"]).await;
    drain(&mut worker).await;
    scene.keys.extend((1..=20).map(|n| format!("behind-{n}")));
    scene.assert_all().await;
}

#[tokio::test]
async fn a_denied_subject_is_parked_and_the_others_of_its_batch_flow() {
    let users = "authorization { users = [
        { user: admin, password: a }
        { user: relay, password: r, permissions = { publish: { deny: [\"orders.denied\"] } } }
    ] }\nno_auth_user: admin";
    let mut scene = Scene::start("", users).await;
    scene.values = with(&scene.values, [("nats-user", "relay"), ("nats-password", "r")]);
    let mut worker = scene.worker("").await;
    if is_known() {
        scene.drain_in_batches(&mut worker).await;
    }
    enqueue(&scene.client, "orders.denied", "denied-", 0..5, 0).await;
    scene.enqueue(60).await;
    eventually("the denied ones are set aside", LIMIT, async || {
        drain(&mut worker).await;
        let sql = "SELECT count(*) FROM oncebox.parked WHERE cause = 'denied'";
        (scene.client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) == 5).then_some(())
    })
    .await;
    scene.assert_all().await;
}

#[tokio::test]
async fn what_a_stream_lost_of_its_batches_is_sent_again() {
    let mut scene = Scene::start("", "").await;
    let mut worker = scene.worker("").await;
    if is_known() {
        scene.drain_in_batches(&mut worker).await;
    }
    drop(worker);
    scene.nats.back_up().await.unwrap();
    let mut worker = scene.worker("").await;
    scene.enqueue(200).await;
    drain(&mut worker).await;
    await_messages(&scene.stream().await, scene.keys.len()).await;
    drop(worker);
    scene.nats.roll_back().await.unwrap();
    scene.nats.resume().await.unwrap();
    let relay = Running::start_with(declared(&scene.values, ""));
    await_messages(&scene.stream().await, scene.keys.len()).await;
    relay.stop().await;
    scene.assert_all().await;
}

#[tokio::test]
async fn a_stream_that_does_not_allow_batches_is_named_and_gets_none() {
    let mut scene = Scene::start("", "").await;
    fresh_stream(&scene.nats.url(), stream_config("ORDERS", "orders.>")).await;
    let refused = Relay::connect(declared(&scene.values, "policy = \"verify\"\n")).await.err();
    let said = refused.expect("it is not as declared").to_string();
    assert!(said.contains("publish is pipelined, declared atomic"), "{said}");
    let mut worker = scene.worker("").await;
    scene.enqueue(60).await;
    drain(&mut worker).await;
    scene.assert_all().await;
    assert_eq!(batched(&scene.stream().await).await, 0, "in batches");
}
