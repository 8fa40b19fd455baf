//! The handler and the table that the inbox tests share.

use std::{
    fmt::Debug,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use oncebox_inbox::{Answer, Builder, Context, Handler, HandlerError, Inbox, Outcome, Received, Verdict};
use oncebox_tests::{TestEnv, database_url, eventually};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::sync::Notify;

use crate::relay::support::client;

pub(crate) const LIMIT: Duration = Duration::from_secs(90);
pub(crate) const SCOPE: &str = "tests:effect";

/// The payload of every message here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) n: i64,
}

pub(crate) type Returned = Result<Outcome<String>, HandlerError>;
type Action = Arc<dyn for<'a> Fn(&'a Context<'a>, Job) -> BoxFuture<'a, Returned> + Send + Sync>;

/// A handler from a closure, which counts its runs.
#[derive(Clone)]
pub(crate) struct Does {
    action: Action,
    runs: Arc<AtomicU64>,
}

impl Does {
    pub(crate) fn new<F>(action: F) -> Self
    where
        F: for<'a> Fn(&'a Context<'a>, Job) -> BoxFuture<'a, Returned> + Send + Sync + 'static,
    {
        Self { action: Arc::new(action), runs: Arc::default() }
    }

    /// One row in `effect`, and a reply that tells its id.
    pub(crate) fn effect() -> Self {
        Self::new(|cx, job| Box::pin(async move { Ok(Outcome::done(insert(cx, &job).await?)) }))
    }

    /// The effect of [`Does::effect`], after which it says that it has entered, and waits until it
    /// may leave.
    pub(crate) fn effect_that_waits() -> (Self, Arc<Notify>, Arc<Notify>) {
        let (entered, leave) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (said, told) = (Arc::clone(&entered), Arc::clone(&leave));
        let handler = Self::new(move |cx, job| {
            let (said, told) = (Arc::clone(&said), Arc::clone(&told));
            Box::pin(async move {
                let reply = insert(cx, &job).await?;
                said.notify_one();
                told.notified().await;
                Ok(Outcome::done(reply))
            })
        });
        (handler, entered, leave)
    }

    pub(crate) fn runs(&self) -> u64 {
        self.runs.load(Ordering::SeqCst)
    }
}

impl Handler for Does {
    type Message = Job;
    type Reply = String;

    async fn handle(&self, cx: Context<'_>, job: Job) -> Returned {
        self.runs.fetch_add(1, Ordering::SeqCst);
        (self.action)(&cx, job).await
    }
}

/// The effect that must happen once.
pub(crate) async fn insert(cx: &Context<'_>, job: &Job) -> Result<String, HandlerError> {
    let sql = "INSERT INTO effect (key, n, line) VALUES ($1, $2, $3) RETURNING id";
    let line = cx.message().ordering_key().unwrap_or_default();
    let row = cx.transaction().query_one(sql, &[&cx.key().as_str(), &job.n, &line]).await?;
    Ok(format!("effect {}", row.get::<_, i64>(0)))
}

pub(crate) async fn environment() -> TestEnv {
    let env = TestEnv::new().await;
    env.pg()
        .await
        .batch_execute("CREATE TABLE effect (id bigserial, key text, n bigint, line text)")
        .await
        .unwrap();
    env
}

/// With a stream as well.
pub(crate) async fn stream_environment() -> TestEnv {
    let env = environment().await;
    env.stream().await;
    env
}

pub(crate) fn builder(env: &TestEnv) -> Builder {
    let short = Duration::from_millis(50);
    Inbox::builder(env.pool(8)).scope(SCOPE).single_tenant().backoff(short, short * 4)
}

pub(crate) fn inbox(env: &TestEnv) -> Inbox {
    builder(env).build().unwrap()
}

pub(crate) fn message(key: &str, n: i64) -> Received {
    Received::new("s.t", serde_json::to_vec(&Job { n }).unwrap()).header("Idempotency-Key", key)
}

/// As if this number of attempts at a message had failed.
pub(crate) async fn tried(env: &TestEnv, key: &str, failures: i64) {
    let sql = "INSERT INTO oncebox.inbox_attempt (scope, tenant, key, message, failures) VALUES ($1, '', $2, '', $3)";
    env.pg().await.execute(sql, &[&SCOPE, &key, &failures]).await.unwrap();
}

/// Moves the database's clock past all pauses, instead of waiting.
pub(crate) async fn rested(env: &TestEnv) {
    let sql = "UPDATE oncebox.inbox_attempt SET due_at = clock_timestamp() WHERE due_at > clock_timestamp();
               UPDATE oncebox.inbox_snooze SET due_at = clock_timestamp() WHERE due_at > clock_timestamp()";
    env.pg().await.batch_execute(sql).await.unwrap();
}

/// Gives every message up.
pub(crate) fn gives_up() -> Does {
    Does::new(|_, _| Box::pin(async { Ok(Outcome::Dead("no use".to_owned())) }))
}

/// How many effects there are.
pub(crate) async fn effects(env: &TestEnv) -> i64 {
    count(env, "effect").await
}

/// The reasons of all dead letters, in order.
pub(crate) async fn dead_letters(env: &TestEnv) -> Vec<String> {
    let rows = env.pg().await.query("SELECT reason FROM oncebox.dead_letter ORDER BY id", &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

pub(crate) async fn count(env: &TestEnv, table: &str) -> i64 {
    env.pg().await.query_one(&format!("SELECT count(*) FROM {table}"), &[]).await.unwrap().get(0)
}

/// An effect without a reply: nothing is pipelined before its COMMIT, so that the proxy hears the
/// COMMIT's own answer.
pub(crate) struct Silent(pub(crate) Does);

impl Handler for Silent {
    type Message = Job;
    type Reply = ();

    async fn handle(&self, cx: Context<'_>, job: Job) -> Result<Outcome<()>, HandlerError> {
        self.0.handle(cx, job).await?;
        Ok(Outcome::done(()))
    }
}

/// How many transactions of this database were committed, and rolled back, once no session is open
/// in it: a session's are counted when it has ended. Asked from another database, or else asking
/// would be counted too.
pub(crate) async fn transactions(env: &TestEnv) -> (i64, i64) {
    let other = client(&database_url(env.database_url(), "postgres")).await;
    eventually("every session has ended", LIMIT, async || {
        let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = $1";
        (other.query_one(open, &[&env.name()]).await.unwrap().get::<_, i64>(0) == 0).then_some(())
    })
    .await;
    let sql = "SELECT xact_commit, xact_rollback FROM pg_stat_database WHERE datname = $1";
    let row = other.query_one(sql, &[&env.name()]).await.unwrap();
    (row.get(0), row.get(1))
}

/// The answer to the first copy, when this verdict says that the message is a duplicate.
#[track_caller]
pub(crate) fn replayed<R: DeserializeOwned + Debug>(verdict: &Verdict<R>) -> Answer<R> {
    match verdict {
        Verdict::Replayed(stored) => stored.decode().unwrap(),
        other => panic!("no duplicate that is answered from the stored outcome: {other:?}"),
    }
}
