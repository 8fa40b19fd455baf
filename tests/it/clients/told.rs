//! A handler in Rust that does as the payload says, over anything that it can write through.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::Mutex,
    time::Duration,
};

use deadpool_postgres::{Object, Pool};
use oncebox_inbox::{HandlerError, Outcome};
use oncebox_outbox::InTransaction;
use oncebox_tests::TestEnv;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The payload.
#[derive(Clone, Deserialize, Serialize)]
pub(super) struct Told {
    pub(super) name: String,
    sql: Vec<String>,
    #[serde(rename = "do")]
    pub(super) action: String,
    reply: bool,
}

/// The outcome that is stored with the key.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Reply {
    Value(Value),
    /// JSON has names for its members, and these are none.
    Odd(HashMap<[u8; 2], u8>),
}

pub(super) type Returned = Result<Outcome<Option<Reply>>, HandlerError>;

/// An error that cannot say why.
#[derive(Debug)]
struct Odd;

impl fmt::Display for Odd {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Err(fmt::Error)
    }
}

impl std::error::Error for Odd {}

/// The transaction of the handler.
pub(super) trait Writes: Send {
    fn write(&mut self, sql: &str) -> impl Future<Output = Result<(), HandlerError>> + Send;
}

impl<T: InTransaction> Writes for &T {
    async fn write(&mut self, sql: &str) -> Result<(), HandlerError> {
        Ok(self.client().batch_execute(sql).await?)
    }
}

/// The state that the handlers share.
pub(super) struct AsTold {
    log: Pool,
    exhausted: Pool,
    /// Its only connection.
    _held: Object,
    lost: Mutex<HashSet<String>>,
}

impl AsTold {
    pub(super) async fn new(env: &TestEnv) -> Self {
        let exhausted = env.pool(1);
        let held = exhausted.get().await.unwrap();
        Self { log: env.pool(4), exhausted, _held: held, lost: Mutex::default() }
    }

    /// All that a handler does which has a transaction.
    pub(super) async fn handle(&self, told: &Told, deliveries: u64, writes: impl Writes) -> Returned {
        self.note(told, deliveries).await?;
        self.write(told, writes).await?;
        self.end(told).await
    }

    /// Records that the handler runs, however its transaction ends.
    pub(super) async fn note(&self, told: &Told, deliveries: u64) -> Result<(), HandlerError> {
        let run = "INSERT INTO run (name, deliveries) VALUES ($1, $2)";
        self.log.get().await?.execute(run, &[&told.name, &i64::try_from(deliveries)?]).await?;
        Ok(())
    }

    /// The effect, and the statements.
    pub(super) async fn write(&self, told: &Told, mut writes: impl Writes) -> Result<(), HandlerError> {
        writes.write(&told.effect()).await?;
        for text in &told.sql {
            match writes.write(text).await {
                Err(error) if !error.to_string().contains("division by zero") => return Err(error),
                _ => {}
            }
        }
        if told.action == "conflict" && self.lost.lock().unwrap().insert(told.name.clone()) {
            writes.write("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$").await?;
        }
        Ok(())
    }

    /// How the handler ends.
    pub(super) async fn end(&self, told: &Told) -> Returned {
        match told.action.as_str() {
            "reject" => return Ok(Outcome::reject(Some(Reply::Value(json!("no"))))),
            "dead" => return Ok(Outcome::dead("no use")),
            "fail" => return Err(HandlerError::message("as it was told")),
            "panic" => panic!("as it was told"),
            "retry" => return Ok(Outcome::retry(Duration::from_millis(700))),
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
        Ok(told.reply())
    }
}

impl Told {
    pub(super) fn has_statements(&self) -> bool {
        !self.sql.is_empty()
    }

    /// That it is done.
    pub(super) fn reply(&self) -> Outcome<Option<Reply>> {
        Outcome::done(self.reply.then(|| Reply::Value(json!({ "did": self.name }))))
    }

    fn effect(&self) -> String {
        format!("INSERT INTO effect (name) VALUES ('{}')", self.name)
    }
}
