//! Every refusal of JetStream that one server can be brought to, and the relay's reaction: the
//! table of docs/failures.md. Those that take a cluster are in `nats::cluster`.

use std::{collections::BTreeSet, fmt::Write as _};

use async_nats::{
    HeaderMap,
    jetstream::{
        self,
        stream::{Config, DiscardPolicy, StorageType, Stream},
    },
};
use futures_util::StreamExt;
use oncebox_tests::{Nats, TestEnv, eventually};
use tokio::task::JoinSet;
use tokio_postgres::Client;

use crate::relay::{
    process::{Process, run_ok},
    support::{LIMIT, assert_delivered, await_messages, enqueue, stored, stream_config, values, with},
};

/// The end of a message that is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Set aside; no attempt is spent.
    Waits,
    /// Set aside with attempts.
    Parks,
    /// Dead at once.
    Dies,
}

/// How the parked messages whose keys begin with `bad-` stand.
#[derive(Debug)]
pub(crate) struct Parked {
    pub(crate) all: i64,
    pub(crate) dead: i64,
    pub(crate) attempts: i32,
    again: bool,
    pub(crate) reasons: String,
}

pub(crate) async fn parked(client: &Client) -> Parked {
    let sql = "SELECT count(*), count(p.dead_at), coalesce(max(p.attempts), 0),
                      coalesce(bool_or(p.next_attempt_at > p.parked_at + interval '1 s'), false),
                      coalesce(string_agg(DISTINCT p.error, '; '), '')
               FROM oncebox.parked AS p JOIN oncebox.message AS m USING (lane, id) WHERE starts_with(m.key, 'bad-')";
    let row = client.query_one(sql, &[]).await.unwrap();
    Parked { all: row.get(0), dead: row.get(1), attempts: row.get(2), again: row.get(3), reasons: row.get(4) }
}

/// A server where something refuses subjects below `bad`, while stream GOOD takes those below
/// `good`.
pub(crate) struct Scene {
    pub(crate) env: TestEnv,
    pub(crate) nats: Nats,
    pub(crate) jetstream: jetstream::Context,
    pub(crate) client: Client,
    good: Stream,
    good_keys: Vec<String>,
    bad_keys: Vec<String>,
}

impl Scene {
    pub(crate) async fn new(nats: Nats) -> Self {
        let env = TestEnv::new().await;
        let client = env.pg().await;
        let jetstream = jetstream::new(async_nats::connect(nats.url()).await.unwrap());
        // In memory: limits of files concern the other streams only.
        let config = Config { storage: StorageType::Memory, ..stream_config("GOOD", "good.>") };
        let good = jetstream.create_stream(config).await.unwrap();
        Self { env, nats, jetstream, client, good, good_keys: Vec::new(), bad_keys: Vec::new() }
    }

    pub(crate) async fn start() -> Self {
        Self::new(Nats::start().await.unwrap()).await
    }

    pub(crate) async fn create(&self, config: Config) -> Stream {
        self.jetstream.create_stream(config).await.unwrap()
    }

    async fn enqueue_good(&mut self) {
        let from = i32::try_from(self.good_keys.len()).unwrap();
        self.good_keys.extend(enqueue(&self.client, "good.a", "good-", from..from + 200, 5).await);
    }

    /// A relay meets the refusal of forty messages, again and again, while all others flow.
    pub(crate) async fn relay(
        &mut self,
        effect: Effect,
        reason: &str,
        settings: &[(&'static str, &str)],
    ) -> Process {
        self.bad_keys = enqueue(&self.client, "bad.a", "bad-", 0..40, 4).await;
        self.enqueue_good().await;
        let mut values =
            with(&values(self.env.database_url(), &self.nats.url()), [("http-listen", "127.0.0.1:0")]);
        if effect == Effect::Waits {
            // One attempt would be one too many.
            values.insert("attempts-max", "1".to_owned());
        }
        values.extend(settings.iter().map(|(name, text)| (*name, (*text).to_owned())));
        let relay = Process::relay(&values);
        await_messages(&self.good, self.good_keys.len()).await;
        let what = format!("messages refused with {reason:?}: {effect:?}");
        eventually(&what, LIMIT * 2, async || {
            let parked = parked(&self.client).await;
            let as_expected = match effect {
                Effect::Waits => parked.again && parked.attempts == 0 && parked.dead == 0,
                Effect::Parks => parked.attempts >= 2 && parked.dead == 0,
                Effect::Dies => parked.dead == 4 && parked.attempts == 1,
            };
            (as_expected && parked.all > 0 && parked.reasons.contains(reason)).then_some(())
        })
        .await;
        self.enqueue_good().await;
        await_messages(&self.good, self.good_keys.len()).await;
        assert_eq!(relay.metric("oncebox_nats_reconnects_total").await, 0.0, "NATS never counts as away");
        relay
    }

    /// After mending everything arrives once and in order.
    pub(crate) async fn mended(self, relay: Process, bad: &Stream) {
        // With two suites side by side, messages that are tried again each few seconds take most of
        // a limit.
        eventually("nothing is parked any more, and all has arrived", LIMIT * 2, async || {
            let here: BTreeSet<String> = stored(bad).await.into_iter().map(|message| message.key).collect();
            let all_are_here = self.bad_keys.iter().all(|key| here.contains(key));
            (all_are_here && parked(&self.client).await.all == 0).then_some(())
        })
        .await;
        relay.signal("TERM").await;
        let (status, log) = relay.ended().await;
        assert_eq!(status.code(), Some(0), "{log}");
        let (mut here, mut keys) = (stored(bad).await, self.bad_keys);
        if bad.cached_info().config.name == "GOOD" {
            keys.extend(self.good_keys);
        } else {
            assert_eq!(assert_delivered(&stored(&self.good).await, &self.good_keys), 0);
            here.retain(|message| message.key != "filler");
        }
        assert_eq!(assert_delivered(&here, &keys), 0);
    }
}

fn full(config: Config) -> Config {
    Config { discard: DiscardPolicy::New, ..config }
}

#[tokio::test]
async fn a_stream_with_too_many_bytes_is_waited_for() {
    let mut scene = Scene::start().await;
    let limit = Config { max_bytes: 2_000, ..stream_config("BAD", "bad.>") };
    let bad = scene.create(full(limit)).await;
    let relay = scene.relay(Effect::Waits, "maximum bytes exceeded (10077)", &[]).await;
    scene.jetstream.update_stream(full(stream_config("BAD", "bad.>"))).await.unwrap();
    scene.mended(relay, &bad).await;
}

#[tokio::test]
async fn a_subject_with_too_many_messages_is_waited_for() {
    let mut scene = Scene::start().await;
    let limit = Config {
        max_messages_per_subject: 3,
        discard_new_per_subject: true,
        ..stream_config("BAD", "bad.>")
    };
    let bad = scene.create(full(limit)).await;
    let relay = scene.relay(Effect::Waits, "maximum messages per subject exceeded (10077)", &[]).await;
    scene.jetstream.update_stream(full(stream_config("BAD", "bad.>"))).await.unwrap();
    scene.mended(relay, &bad).await;
}

#[tokio::test]
async fn a_server_without_room_is_waited_for() {
    let nats = Nats::start_with_jetstream("max_file: 100KB", "").await.unwrap();
    Box::pin(without_room(nats, "insufficient resources (10023)")).await;
}

#[tokio::test]
async fn an_account_without_room_is_waited_for() {
    let account = "accounts { A { jetstream: { max_file: 100KB }, users: [{ user: a, password: a }] } }
                   no_auth_user: a";
    let nats = Nats::start_with(account).await.unwrap();
    Box::pin(without_room(nats, "resource limits exceeded for account (10002)")).await;
}

/// Another stream has used up the room.
async fn without_room(nats: Nats, reason: &str) {
    let mut scene = Scene::new(nats).await;
    let bad = scene.create(stream_config("BAD", "bad.>")).await;
    scene.create(stream_config("FILLER", "filler")).await;
    for _ in 0..12 {
        // The last of them find no room.
        let _ = scene.jetstream.publish("filler", vec![b'x'; 10_000].into()).await.unwrap().await;
    }
    let relay = scene.relay(Effect::Waits, reason, &[]).await;
    scene.jetstream.delete_stream("FILLER").await.unwrap();
    scene.mended(relay, &bad).await;
}

#[tokio::test]
async fn a_stream_that_is_asked_too_much_at_once_is_waited_for() {
    if Nats::version().unwrap() < (2, 12) {
        println!("left out: nats-server before 2.12 does not know max_buffered_msgs");
        return;
    }
    // Each message is written to the disk before the next, and four may queue up for that.
    let nats = Nats::start_with_jetstream("max_buffered_msgs: 4\nsync_interval: always", "").await.unwrap();
    let env = TestEnv::new().await;
    let (client, jetstream) =
        (env.pg().await, jetstream::new(async_nats::connect(nats.url()).await.unwrap()));
    let stream = jetstream.create_stream(stream_config("S", "bad.>")).await.unwrap();
    let keys = enqueue(&client, "bad.a", "bad-", 0..2_000, 0).await;
    let values = with(
        &values(env.database_url(), &nats.url()),
        [("http-listen", "127.0.0.1:0"), ("attempts-max", "1")],
    );
    let relay = Process::relay(&values);
    let mut reasons = String::new();
    eventually("all arrive", LIMIT * 2, async || {
        let parked = parked(&client).await;
        assert_eq!((parked.attempts, parked.dead), (0, 0), "{parked:?}");
        reasons.push_str(&parked.reasons);
        (stream.get_info().await.unwrap().state.messages == 2_000).then_some(())
    })
    .await;
    assert!(reasons.contains("too many requests (10167)"), "{reasons}");
    assert_eq!(relay.metric("oncebox_nats_reconnects_total").await, 0.0, "NATS never counts as away");
    relay.kill().await;
    assert_eq!(assert_delivered(&stored(&stream).await, &keys), 0);
}

#[tokio::test]
async fn a_message_larger_than_its_stream_takes_is_dead_at_once() {
    let mut scene = Scene::start().await;
    let limit = Config { max_message_size: 10, ..stream_config("BAD", "bad.>") };
    let bad = scene.create(limit).await;
    let relay = scene.relay(Effect::Dies, "message size exceeds maximum allowed (10054)", &[]).await;
    scene.jetstream.update_stream(stream_config("BAD", "bad.>")).await.unwrap();
    run_ok(scene.env.database_url(), &["outbox", "dead", "retry", "--all"]).await;
    scene.mended(relay, &bad).await;
}

#[tokio::test]
async fn headers_larger_than_any_stream_takes_are_refused_by_enqueue() {
    let scene = Scene::start().await;
    let mut headers = HeaderMap::new();
    headers.insert("large", "x".repeat(70_000));
    let publishing = scene.jetstream.publish_with_headers("good.a", headers, "".into());
    let refused = publishing.await.unwrap().await.unwrap_err();
    let reason = oncebox_connect::error::error_chain(&refused);
    assert!(reason.contains("10097"), "{reason}");
    let mut headers = String::new();
    write!(headers, r#"{{"large": "{}"}}"#, "x".repeat(70_000)).unwrap();
    let sql = "SELECT oncebox.enqueue('large', 'good.a', '', $1::text::jsonb)";
    let error = scene.client.query_one(sql, &[&headers]).await.unwrap_err();
    assert_eq!(error.code().unwrap().code(), "OB004", "{error}");
}

#[tokio::test]
async fn a_subject_without_a_stream_is_parked() {
    let mut scene = Scene::start().await;
    let relay = scene.relay(Effect::Parks, "no stream takes the subject", &[]).await;
    let bad = scene.create(stream_config("BAD", "bad.>")).await;
    scene.mended(relay, &bad).await;
}

#[tokio::test]
async fn a_user_who_may_not_ask_for_streams_parks_without_noise() {
    let permissions = "authorization { users = [
        { user: admin, password: a }
        { user: relay, password: r, permissions = { publish: [\"good.>\", \"bad.>\"] } }
    ] }\nno_auth_user: admin";
    let mut scene = Scene::new(Nats::start_with(permissions).await.unwrap()).await;
    let login = [("nats-user", "relay"), ("nats-password", "r")];
    let relay = scene.relay(Effect::Parks, "no stream takes the subject", &login).await;
    assert!(!relay.log().contains("does not let"), "{}", relay.log());
    let bad = scene.create(stream_config("BAD", "bad.>")).await;
    scene.mended(relay, &bad).await;
}

#[tokio::test]
async fn another_stream_than_the_expected_one_is_parked() {
    let mut scene = Scene::start().await;
    let reason = "does not match (10060): another stream than GOOD, the option expected-stream,";
    scene.create(stream_config("BAD", "bad.>")).await;
    let relay = scene.relay(Effect::Parks, reason, &[("expected-stream", "GOOD")]).await;
    scene.jetstream.delete_stream("BAD").await.unwrap();
    let all = Config { subjects: vec!["good.>".into(), "bad.>".into()], ..stream_config("GOOD", "good.>") };
    scene.jetstream.update_stream(Config { storage: StorageType::Memory, ..all }).await.unwrap();
    let good = scene.good.clone();
    scene.mended(relay, &good).await;
}

#[tokio::test]
async fn a_sealed_stream_is_parked() {
    let mut scene = Scene::start().await;
    scene.create(stream_config("BAD", "bad.>")).await;
    let sealed = Config { sealed: true, ..stream_config("BAD", "bad.>") };
    scene.jetstream.update_stream(sealed).await.unwrap();
    let relay = scene.relay(Effect::Parks, "invalid operation on sealed stream (10109)", &[]).await;
    // There is no way back for a sealed stream.
    scene.jetstream.delete_stream("BAD").await.unwrap();
    let bad = scene.create(stream_config("BAD", "bad.>")).await;
    scene.mended(relay, &bad).await;
}

#[tokio::test]
async fn an_answer_of_a_stranger_is_parked() {
    stranger("thanks", "the answer is no JetStream acknowledgement").await;
}

/// PostgreSQL takes no NUL in a text, and would fail the pass for ever.
#[tokio::test]
async fn an_answer_of_a_stranger_with_control_characters_is_parked() {
    let answer = r#"{"error":{"code":1,"err_code":7,"description":"a\u0000b\nc\u001b[31m"}}"#;
    stranger(answer, "JetStream refused: a b c [31m (7)").await;
}

/// Another subscriber answers.
async fn stranger(answer: &'static str, reason: &str) {
    let mut scene = Scene::start().await;
    let client = async_nats::connect(scene.nats.url()).await.unwrap();
    let mut requests = client.subscribe("bad.>").await.unwrap();
    client.flush().await.unwrap();
    let mut answering = JoinSet::new();
    answering.spawn(async move {
        while let Some(request) = requests.next().await {
            client.publish(request.reply.unwrap(), answer.into()).await.unwrap();
        }
    });
    let relay = scene.relay(Effect::Parks, reason, &[]).await;
    answering.shutdown().await;
    let bad = scene.create(stream_config("BAD", "bad.>")).await;
    scene.mended(relay, &bad).await;
}
