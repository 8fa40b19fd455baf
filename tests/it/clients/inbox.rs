//! The Rust inbox as one of the consumers: a handler that does as the payload says.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::Mutex,
    time::Duration,
};

use deadpool_postgres::{Object, Pool};
use oncebox_inbox::{Consumer, Context, Handler, HandlerError, Inbox, Outcome};
use oncebox_tests::TestEnv;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_postgres::error::SqlState;
use tokio_util::sync::CancellationToken;

/// The payload.
#[derive(Deserialize)]
struct Told {
    name: String,
    sql: Vec<String>,
    #[serde(rename = "do")]
    action: String,
    reply: bool,
}

/// What is stored with the key.
#[derive(Serialize)]
#[serde(untagged)]
enum Reply {
    Value(Value),
    /// JSON has names for its members, and these are none.
    Odd(HashMap<[u8; 2], u8>),
}

/// An error that cannot say why.
#[derive(Debug)]
struct Odd;

impl fmt::Display for Odd {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Err(fmt::Error)
    }
}

impl std::error::Error for Odd {}

struct AsTold {
    log: Pool,
    exhausted: Pool,
    /// Its only connection.
    _held: Object,
    lost: Mutex<HashSet<String>>,
}

impl Handler for AsTold {
    type Message = Told;
    type Reply = Option<Reply>;

    async fn handle(&self, cx: &Context<'_>, told: Told) -> Result<Outcome<Option<Reply>>, HandlerError> {
        let deliveries = i64::try_from(cx.message().delivery_count())?;
        let run = "INSERT INTO run (name, deliveries) VALUES ($1, $2)";
        self.log.get().await?.execute(run, &[&told.name, &deliveries]).await?;
        let effect = "INSERT INTO effect (name) VALUES ($1)";
        cx.transaction().execute(effect, &[&told.name]).await?;
        for text in &told.sql {
            match cx.transaction().batch_execute(text).await {
                Err(error) if error.code() != Some(&SqlState::DIVISION_BY_ZERO) => return Err(error.into()),
                _ => {}
            }
        }
        match told.action.as_str() {
            "reject" => return Ok(Outcome::reject(Some(Reply::Value(json!("no"))))),
            "dead" => return Ok(Outcome::dead("no use")),
            "fail" => return Err(HandlerError::message("as it was told")),
            "panic" => panic!("as it was told"),
            "retry" => return Ok(Outcome::retry(Duration::from_millis(700))),
            "conflict" if self.lost.lock().unwrap().insert(told.name.clone()) => {
                cx.transaction().batch_execute("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$").await?;
            }
            "hang" => std::future::pending().await,
            "pool" => {
                let limit = Duration::from_millis(50);
                drop(tokio::time::timeout(limit, self.exhausted.get()).await??);
            }
            "odd-reply" => return Ok(Outcome::done(Some(Reply::Odd(HashMap::from([([1, 2], 3)]))))),
            "long-reply" => return Ok(Outcome::done(Some(Reply::Value(json!("x".repeat(1 << 20)))))),
            "odd-error" => return Err(Odd.into()),
            _ => {}
        }
        Ok(Outcome::done(told.reply.then(|| Reply::Value(json!({ "did": told.name })))))
    }
}

/// A consumer in this process.
pub(super) struct Running {
    shutdown: CancellationToken,
    tasks: JoinSet<Result<(), oncebox_inbox::Error>>,
}

impl Running {
    pub(super) async fn start(env: &TestEnv) -> Self {
        let exhausted = env.pool(1);
        let held = exhausted.get().await.unwrap();
        let handler = AsTold { log: env.pool(4), exhausted, _held: held, lost: Mutex::default() };
        let inbox = Inbox::builder(env.pool(4))
            .scope("conform:test")
            .tenant_header("Tenant")
            .deliveries_max(3)
            .backoff(Duration::from_millis(400), Duration::from_secs(2))
            .handler_timeout(Duration::from_secs(3));
        let consumer = Consumer::new(env.jetstream().await, env.name(), "conform").concurrency(3);
        let shutdown = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(consumer.run(inbox.build().unwrap(), handler, shutdown.clone()));
        Self { shutdown, tasks }
    }

    /// An error if it has ended by itself.
    pub(super) fn check(&mut self) -> Result<(), String> {
        match self.tasks.try_join_next() {
            None => Ok(()),
            Some(ended) => Err(format!("the consumer ended: {ended:?}")),
        }
    }

    pub(super) async fn stop(mut self) {
        self.shutdown.cancel();
        self.tasks.join_next().await.expect("it has not ended before").unwrap().unwrap();
    }
}
