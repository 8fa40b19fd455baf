//! Functions that the relay's tests share: enqueue, run a relay, read the stream, compare.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    error::Error,
    ops::Range,
    time::Duration,
};

use async_nats::jetstream::{self, consumer::pull::OrderedConfig, stream::Stream};
use deadpool_postgres::{Manager, Object, Pool};
use futures_util::{StreamExt, TryStreamExt};
use oncebox_relay::{
    Config, Relay, RelayError, Values,
    parts::{Pass, Worker},
};
use oncebox_schema::{MessageId, Sending};
use oncebox_tests::{Proxy, TestEnv, eventually};
use tokio::task::JoinSet;
use tokio_postgres::{GenericClient, NoTls};
use tokio_util::sync::CancellationToken;

/// Generous: a passing test never waits for it.
pub(crate) const LIMIT: Duration = Duration::from_secs(90);
const PASSES_MAX: usize = 2_000;

pub(crate) fn values(database_url: &str, nats_url: &str) -> Values {
    Values::from([
        ("database-url", database_url.to_owned()),
        ("nats-url", nats_url.to_owned()),
        ("http-listen", "off".to_owned()),
    ])
}

pub(crate) fn values_of(env: &TestEnv) -> Values {
    values(env.database_url(), env.nats_url())
}

/// These values with some changed.
pub(crate) fn with<const N: usize>(values: &Values, changes: [(&'static str, &str); N]) -> Values {
    let mut values = values.clone();
    values.extend(changes.map(|(name, text)| (name, text.to_owned())));
    values
}

pub(crate) async fn connect(values: &Values) -> Relay {
    Relay::connect(Config::from_values(values).unwrap()).await.unwrap()
}

/// Makes passes until nothing is due; returns how many messages were settled.
pub(crate) async fn drain(worker: &mut Worker) -> usize {
    let mut settled = 0;
    for _ in 0..PASSES_MAX {
        match worker.run_once().await.unwrap() {
            Pass::Settled { messages, .. } => settled += messages,
            Pass::Idle => return settled,
            other => panic!("{other:?} while draining"),
        }
    }
    panic!("still something due after {PASSES_MAX} passes, {settled} messages settled");
}

/// A relay of this process, with all its loops.
pub(crate) struct Running {
    stop: CancellationToken,
    tasks: JoinSet<Result<(), RelayError>>,
}

impl Running {
    pub(crate) fn start(values: &Values) -> Self {
        Self::start_with(Config::from_values(values).unwrap())
    }

    pub(crate) fn start_with(config: Config) -> Self {
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(Relay::run(config, stop.clone().cancelled_owned()));
        Self { stop, tasks }
    }

    pub(crate) async fn stop(mut self) {
        self.stop.cancel();
        self.tasks.join_next().await.unwrap().unwrap().expect("the relay drains");
    }
}

/// A connection to any database.
pub(crate) async fn client(url: &str) -> Object {
    let manager = Manager::new(url.parse().unwrap(), NoTls);
    Pool::builder(manager).max_size(1).build().unwrap().get().await.unwrap()
}

/// Enqueues `prefix` + number in one statement and returns the keys; with `ordering_keys` above 0
/// the numbers share that number of ordering keys.
pub(crate) async fn enqueue(
    client: &impl GenericClient,
    subject: &str,
    prefix: &str,
    numbers: Range<i32>,
    ordering_keys: i32,
) -> Vec<String> {
    let sql = "SELECT count(oncebox.enqueue($1::text || n, $2, convert_to(n::text, 'UTF8'), '{}',
                      CASE WHEN $5::int > 0 THEN $1::text || 'key' || n % greatest($5::int, 1) END))
               FROM generate_series($3::int, $4::int - 1) AS n";
    let row = client.query_one(sql, &[&prefix, &subject, &numbers.start, &numbers.end, &ordering_keys]).await;
    let keys: Vec<String> = numbers.map(|n| format!("{prefix}{n}")).collect();
    assert_eq!(row.unwrap().get::<_, i64>(0), keys.len() as i64, "keys are fresh");
    keys
}

/// The messages of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    /// Its key; of a replay with `;r=` and its number at the end.
    pub(crate) key: String,
    /// Its `Nats-Msg-Id`.
    pub(crate) msg_id: String,
    pub(crate) id: i64,
    pub(crate) ordering_key: Option<String>,
    pub(crate) payload: Vec<u8>,
    /// Published in an atomic batch.
    pub(crate) is_batched: bool,
}

/// All that the stream holds. Asked again when that fails or no answer comes: a cluster that has
/// just lost a leader has lost the consumer as well, or cannot create one yet.
pub(crate) async fn stored(stream: &Stream) -> Vec<Stored> {
    let mut last = String::from("no answer");
    for _ in 0..LIMIT.as_secs() {
        match tokio::time::timeout(LIMIT / 2, read(stream)).await {
            Ok(Ok(all)) => return all,
            Ok(Err(error)) => last = error.to_string(),
            Err(elapsed) => last = elapsed.to_string(),
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    panic!("the stream cannot be read: {last}");
}

async fn read(stream: &Stream) -> Result<Vec<Stored>, Box<dyn Error>> {
    let total = stream.get_info().await?.state.messages;
    if total == 0 {
        return Ok(Vec::new());
    }
    let consumer = stream.create_consumer(OrderedConfig::default()).await?;
    let messages = consumer.messages().await?.take(usize::try_from(total)?);
    let read = messages.map(|message| {
        let message = message?;
        let header = |name: &str| message.headers.as_ref().unwrap().get(name).map(ToString::to_string);
        let (key, msg_id) = (header("Idempotency-Key").unwrap(), header("Nats-Msg-Id").unwrap());
        let key = match MessageId::parse(&msg_id) {
            Some(id) => {
                assert_eq!(id.key, key, "the id ends with the key");
                match id.sending {
                    Sending::Replay(number) => format!("{key};r={number}"),
                    _ => key,
                }
            }
            // Of another publisher in the test.
            None if msg_id == key => key,
            // A row with a key that no function writes, in a test that spoils tables.
            None if key.is_empty() => msg_id.clone(),
            None => return Err(format!("no id of ours: {msg_id}").into()),
        };
        Ok(Stored {
            key,
            msg_id,
            id: header("Oncebox-Id").unwrap().parse()?,
            ordering_key: header("Oncebox-Ordering-Key"),
            payload: message.payload.to_vec(),
            is_batched: header("Nats-Batch-Sequence").is_some(),
        })
    });
    read.try_collect().await
}

/// Panics unless the stream holds all of `expected`, nothing else, in order within each ordering
/// key; returns how many copies it holds beyond the first of each.
pub(crate) fn assert_delivered(stored: &[Stored], expected: &[String]) -> usize {
    let expected: BTreeSet<&str> = expected.iter().map(String::as_str).collect();
    let present: BTreeSet<&str> = stored.iter().map(|message| message.key.as_str()).collect();
    let few = |keys: Vec<&&str>| format!("{}: {:?}", keys.len(), &keys[..keys.len().min(10)]);
    assert_eq!(few(expected.difference(&present).collect()), "0: []", "lost");
    assert_eq!(few(present.difference(&expected).collect()), "0: []", "not to be there");
    assert_in_order(stored);
    stored.len() - present.len()
}

/// First copies stand in the order in which they were enqueued.
pub(crate) fn assert_in_order(stored: &[Stored]) {
    let mut last: HashMap<&str, i64> = HashMap::new();
    let mut seen = HashSet::new();
    for message in stored.iter().filter(|message| seen.insert(&message.key)) {
        let Some(ordering_key) = &message.ordering_key else { continue };
        let before = last.insert(ordering_key, message.id).unwrap_or(0);
        assert!(before < message.id, "{ordering_key}: {} came after id {before}", message.key);
    }
}

/// A proxy before one of the tests' servers, and the server's URL through it.
pub(crate) async fn through_proxy(url: &str) -> (Proxy, String) {
    let (_, rest) = url.rsplit_once("127.0.0.1:").expect("servers of the tests listen on loopback");
    let port: String = rest.chars().take_while(char::is_ascii_digit).collect();
    let proxy = Proxy::start(([127, 0, 0, 1], port.parse().unwrap()).into()).await;
    let through = url.replace(&format!("127.0.0.1:{port}"), &format!("127.0.0.1:{}", proxy.port()));
    (proxy, through)
}

/// Steps until a round is over; returns how many messages were deleted.
pub(crate) async fn maintain(maintainer: &mut oncebox_relay::parts::Maintainer) -> u64 {
    let mut pruned = 0;
    for _ in 0..1_000 {
        let done = maintainer.run_once().await.unwrap();
        pruned += done.pruned;
        if !done.more {
            return pruned;
        }
    }
    panic!("maintenance has no end");
}

/// A round of maintenance.
pub(crate) async fn a_round(values: &Values) -> u64 {
    maintain(&mut connect(values).await.maintainer()).await
}

/// All that is drained now was drained eight days ago, and each turn began then.
pub(crate) async fn age(client: &tokio_postgres::Client) {
    let sql = "UPDATE oncebox.segment
               SET began_at = began_at - interval '8 days', drained_at = drained_at - interval '8 days',
                   tried_at = tried_at - interval '8 days';
               UPDATE oncebox.late_receipt SET at = at - interval '8 days';
               UPDATE oncebox.milestone SET reached_at = reached_at - interval '8 days'";
    client.batch_execute(sql).await.unwrap();
}

/// A month, with a round in each week: three turns. Returns how many messages went.
pub(crate) async fn a_month(client: &tokio_postgres::Client, values: &Values) -> u64 {
    let mut pruned = 0;
    for _ in 0..4 {
        age(client).await;
        pruned += a_round(values).await;
    }
    pruned
}

/// Ends the turn of the log, when all in it is settled: from now on relays read the next segment
/// alone.
pub(crate) async fn turn_the_ring(client: &tokio_postgres::Client) {
    let ended = "SELECT oncebox.end_turn(0, 1000, 0)";
    assert_eq!(client.query_one(ended, &[]).await.unwrap().get::<_, Option<String>>(0), None);
    let live = client.query_one("SELECT oncebox.drain_segments()", &[]).await.unwrap();
    assert_eq!(live.get::<_, i32>(0), 1, "all is settled");
}

/// How many messages the stream holds.
pub(crate) async fn count(stream: &Stream) -> usize {
    usize::try_from(stream.get_info().await.unwrap().state.messages).unwrap()
}

/// Waits until the stream holds `count` messages.
pub(crate) async fn await_messages(stream: &Stream, count: usize) {
    let what = format!("{count} messages in the stream");
    eventually(&what, LIMIT, async || {
        (stream.get_info().await.ok()?.state.messages >= count as u64).then_some(())
    })
    .await;
}

/// Creates a stream; one of that name goes first, with its messages and its duplicate window.
pub(crate) async fn fresh_stream(nats_url: &str, config: jetstream::stream::Config) -> Stream {
    let context = jetstream::new(async_nats::connect(nats_url).await.unwrap());
    let _ = context.delete_stream(&config.name).await;
    context.create_stream(config).await.unwrap()
}

/// A stream's configuration with nothing but name and subject.
pub(crate) fn stream_config(name: &str, subject: &str) -> jetstream::stream::Config {
    jetstream::stream::Config {
        name: name.to_owned(),
        subjects: vec![subject.to_owned()],
        ..jetstream::stream::Config::default()
    }
}
