//! A relay is suspended inside a pass, in each of its steps: another goes on within half a minute,
//! and when the first one wakes up, nothing changes.

use std::time::Duration;

use async_nats::jetstream::stream::Stream;
use oncebox_relay::Values;
use oncebox_tests::{Postgres, TestEnv, adversity, eventually};
use tokio_postgres::{GenericClient, Transaction};

use crate::relay::{
    process::Process,
    support::{assert_delivered, client, connect, count, drain, stored, through_proxy, values, with},
};

/// Half a minute by the promise, and time to deliver. A session that only PostgreSQL's former limit
/// of a minute ends is too late.
const GOES_ON: Duration = Duration::from_secs(50);
const MESSAGES: i32 = 24;
/// How often a relay is suspended until it is in the step that is meant.
const ATTEMPTS: u32 = 4;

/// A database on a server of its own, over TCP or a Unix socket.
struct Outbox {
    env: TestEnv,
    server: Postgres,
    stream: Stream,
    values: Values,
}

impl Outbox {
    async fn new(is_unix: bool) -> Self {
        let env = TestEnv::new().await;
        let stream = env.stream().await;
        let settings: &[_] = if is_unix { &[("unix_socket_directories", "'.'")] } else { &[] };
        let server = Postgres::start_with(settings).await.unwrap();
        let tcp = server.url("postgres");
        let mut migrating = client(&tcp).await;
        oncebox_schema::migrate(
            &mut migrating,
            &"oncebox".parse().unwrap(),
            oncebox_schema::Lanes::default(),
        )
        .await
        .unwrap();
        let directory: String = migrating.query_one("SHOW data_directory", &[]).await.unwrap().get(0);
        let url = if is_unix {
            format!("host={directory} port={} user=postgres dbname=postgres", server.port())
        } else {
            tcp
        };
        // A pass takes all lanes, and all that is due in them.
        let values = with(&values(&url, env.nats_url()), [("batch-lanes", "16"), ("batch-bytes", "8388608")]);
        Self { env, server, stream, values }
    }

    /// A leader, and a standby.
    async fn pair(&self, first: &Values) -> (Process, Process) {
        let first = Process::relay(first);
        first.await_log("this relay is the leader").await;
        let second = Process::relay(&self.values);
        second.await_log("another relay is the leader").await;
        (first, second)
    }

    async fn enqueue(&self, client: &impl GenericClient, prefix: &str, bytes: i32) -> Vec<String> {
        let sql = "SELECT count(oncebox.enqueue($1 || n, $2, convert_to(repeat('x', $4), 'UTF8')))
                   FROM generate_series(1, $3::int) AS n";
        client.execute(sql, &[&prefix, &self.env.subject("a"), &MESSAGES, &bytes]).await.unwrap();
        (1..=MESSAGES).map(|n| format!("{prefix}{n}")).collect()
    }

    /// Waits until a session of a relay is in this state.
    async fn await_session(&self, condition: &str) -> anyhow::Result<()> {
        let client = client(&self.server.url("postgres")).await;
        adversity::await_relay_session(&client, condition).await
    }

    /// The second relay delivers all while the first is suspended; then that one goes on.
    async fn goes_on(&self, first: Process, second: Process, mut expected: Vec<String>) {
        let client = client(&self.server.url("postgres")).await;
        eventually("the second relay goes on", GOES_ON, async || {
            (count(&self.stream).await >= expected.len()).then_some(())
        })
        .await;
        first.signal("CONT").await;
        expected.extend(self.enqueue(&**client, "late-", 10).await);
        eventually("what comes later", GOES_ON, async || {
            (count(&self.stream).await >= expected.len()).then_some(())
        })
        .await;
        for relay in [first, second] {
            relay.signal("TERM").await;
            let (ended, log) = relay.ended().await;
            assert_eq!(ended.code(), Some(0), "{log}");
        }
        assert_eq!(drain(&mut connect(&self.values).await.worker()).await, 0, "all is settled");
        assert_eq!(assert_delivered(&stored(&self.stream).await, &expected), 0, "nothing twice");
    }
}

/// The first relay is suspended while a statement of its pass waits for this lock.
async fn suspended_behind(lock: &str, is_unix: bool, bytes: i32, ends_up: &str) {
    let locks_log = lock.contains(".log ");
    let outbox = Outbox::new(is_unix).await;
    let (first, second) = outbox.pair(&outbox.values).await;
    let mut locking = client(&outbox.server.url("postgres")).await;
    let watching = client(&outbox.server.url("postgres")).await;
    let transaction = locking.transaction().await.unwrap();
    let mut expected = outbox.enqueue(&*transaction, "m-", 10).await;
    transaction.commit().await.unwrap();
    // Each connection of the relay has prepared its statements, those over one segment as well.
    // These are small: Linux lets the receive buffer of a socket grow with the data that is read,
    // and a larger answer fitted into it.
    for round in 0..24 {
        expected.extend(outbox.enqueue(&**watching, &format!("m{round}-"), 10).await);
        eventually("a round", GOES_ON, async || {
            (count(&outbox.stream).await >= expected.len()).then_some(())
        })
        .await;
    }
    // Stands for a pass that has been claimed: the lock comes first, or the messages are gone.
    let beside = client(&outbox.server.url("postgres")).await;
    for attempt in 1..=ATTEMPTS {
        let prefix = format!("more-{attempt}-");
        let enqueue = async |transaction: &Transaction<'_>| {
            // A settlement waits only for messages that are committed.
            Ok(match locks_log {
                true => outbox.enqueue(transaction, &prefix, bytes).await,
                false => outbox.enqueue(&**beside, &prefix, bytes).await,
            })
        };
        let suspend = async || {
            first.signal("STOP").await;
            Ok(())
        };
        // Its sessions are not to be taken for those of the first, and it would help.
        second.signal("STOP").await;
        let more = adversity::suspend_behind(&watching, &mut locking, lock, enqueue, suspend).await;
        expected.extend(more.unwrap());
        let ended_up = outbox.await_session(ends_up).await;
        second.signal("CONT").await;
        match ended_up {
            Ok(()) => break,
            // It was suspended between two statements that it otherwise sends together.
            Err(error) => assert!(attempt < ATTEMPTS, "{error:#}"),
        }
        first.signal("CONT").await;
        eventually("the rest of an attempt", GOES_ON, async || {
            (count(&outbox.stream).await >= expected.len()).then_some(())
        })
        .await;
    }
    outbox.goes_on(first, second, expected).await;
}

/// PostgreSQL sends an answer that is larger than the buffers of the sockets.
#[tokio::test]
async fn while_it_reads_over_tcp() {
    let lock = "LOCK TABLE oncebox.log IN ACCESS EXCLUSIVE MODE";
    Box::pin(suspended_behind(lock, false, 800_000, "wait_event = 'ClientWrite'")).await;
}

#[tokio::test]
async fn while_it_reads_over_a_unix_socket() {
    let lock = "LOCK TABLE oncebox.log IN ACCESS EXCLUSIVE MODE";
    Box::pin(suspended_behind(lock, true, 100_000, "wait_event = 'ClientWrite'")).await;
}

/// The answers fit: it is suspended between the claim and the first message.
#[tokio::test]
async fn after_it_has_claimed() {
    let lock = "LOCK TABLE oncebox.log IN ACCESS EXCLUSIVE MODE";
    Box::pin(suspended_behind(lock, false, 10, "state = 'idle in transaction'")).await;
}

/// The settlement is committed, although the relay does not hear of it.
#[tokio::test]
async fn while_it_settles() {
    let lock = "LOCK TABLE oncebox.cursor IN SHARE MODE";
    Box::pin(suspended_behind(lock, false, 10, "query = 'COMMIT' AND state = 'idle'")).await;
}

/// A turn of the log ends, although the relay does not hear of it: producers wait for nothing.
#[tokio::test]
async fn while_it_ends_a_turn() {
    let outbox = Outbox::new(false).await;
    let url = outbox.server.url("postgres");
    let (admin, producer) = (client(&url).await, client(&url).await);
    adversity::pause_in(&admin, "end_turn").await.unwrap();
    admin.query_one("SELECT pg_advisory_lock($1)", &[&adversity::WAITS_FOR]).await.unwrap();
    let begun = "UPDATE oncebox.segment SET began_at = began_at - interval '1 day'";
    admin.batch_execute(begun).await.unwrap();
    let relay = Process::relay(&with(&outbox.values, [("retention", "1m")]));
    adversity::await_pause(&producer).await.unwrap();
    relay.signal("STOP").await;
    admin.query_one("SELECT pg_advisory_unlock($1)", &[&adversity::WAITS_FOR]).await.unwrap();
    let turn = "SELECT FROM generate_series(1, 1) WHERE pg_sequence_last_value('oncebox.turn') = 1";
    eventually("the turn ends", GOES_ON, async || producer.query_opt(turn, &[]).await.unwrap()).await;
    // With its snapshot, the segment of the new turn has to be committed.
    producer.batch_execute("SET default_transaction_isolation = 'repeatable read'").await.unwrap();
    eventually("a producer goes on", Duration::from_secs(5), async || {
        producer.query_one("SELECT oncebox.enqueue('k', 's', 'p')", &[]).await.ok()
    })
    .await;
    for signal in ["CONT", "TERM"] {
        relay.signal(signal).await;
    }
    let (ended, log) = relay.ended().await;
    assert_eq!(ended.code(), Some(0), "{log}");
}

/// It waits for acknowledgements, with its messages on their way.
#[tokio::test]
async fn while_it_publishes() {
    let outbox = Outbox::new(false).await;
    let (proxy, url) = through_proxy(outbox.env.nats_url()).await;
    let slow = with(&outbox.values, [("nats-url", &*url), ("ack-timeout-seconds", "15")]);
    let (first, second) = outbox.pair(&slow).await;
    proxy.stall(true);
    let client = client(&outbox.server.url("postgres")).await;
    let expected = outbox.enqueue(&**client, "m-", 10).await;
    outbox
        .await_session("state = 'idle in transaction' AND state_change < clock_timestamp() - interval '1 s'")
        .await
        .unwrap();
    first.signal("STOP").await;
    proxy.stall(false);
    outbox.goes_on(first, second, expected).await;
}
