//! A consumer that calls the SQL functions, as docs/consuming.md tells you to in a language without
//! a package.

use std::{panic::AssertUnwindSafe, time::Duration};

use async_nats::jetstream::{AckKind, Message, consumer::pull};
use deadpool_postgres::{ClientWrapper, Object, Pool};
use futures_util::{FutureExt as _, StreamExt as _};
use oncebox_inbox::{HandlerError, Outcome};
use oncebox_tests::TestEnv;
use tokio::time::timeout;
use tokio_postgres::{
    Error, IsolationLevel, NoTls,
    error::SqlState,
    types::{ToSql, Type},
};
use tokio_util::sync::CancellationToken;

use super::told::{AsTold, Reply, Told};

const ATTEMPTS: i64 = 3;
const LIMIT: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(400);
const REPLY_MAX: usize = 1 << 20;

const CLAIM: &str = "SELECT answer, pg_current_xact_id_if_assigned()::text
                     FROM oncebox.claim('conform:test', $1, $2, $3)";
const SETTLE: &str = "SELECT oncebox.settle('conform:test', $1, $2::text::json, $3, $4)";
const COMMITTED: &str =
    "SELECT EXISTS (SELECT FROM oncebox.inbox WHERE scope = 'conform:test' AND tenant = $1::text
                                                 AND key = $2::text AND xmin = $3::text::xid8::xid)";
const FAILED: &str = "SELECT oncebox.attempt_failed('conform:test', $1, $2, $3, $4, timestamptz 'epoch' + $5 * interval '1 microsecond',
                                              $6, $7, $8, $8)";
const FORGET: &str = "SELECT oncebox.forget_attempts('conform:test', $1, $2)";
const BURY: &str =
    "SELECT oncebox.bury('conform:test', $1, $2, $3, 'a', tenant => $4, committed_by => $5::text::xid8,
                                        headers => jsonb_build_object('Scenario', $6))";

/// Why a message is not handled.
enum Failure {
    /// It lost a race.
    Conflict(String),
    Attempt(String),
    RetryAfter(Duration),
    Dead(String),
}

/// A message, and the data of its headers.
struct Received<'a> {
    message: &'a Message,
    key: &'a str,
    tenant: &'a str,
    scenario: &'a str,
}

struct Consumer {
    pool: Pool,
    told: AsTold,
}

/// Handles messages until it is told to stop.
pub(super) async fn consume(
    env: &TestEnv,
    told: AsTold,
    shutdown: CancellationToken,
) -> impl Future<Output = Result<(), oncebox_inbox::Error>> + Send + 'static {
    let stream = env.jetstream().await.get_stream(env.name()).await.unwrap();
    let config = pull::Config { durable_name: Some("conform".to_owned()), ..Default::default() };
    let durable = stream.create_consumer(config).await.unwrap();
    let consumer = Consumer { pool: env.pool(4), told };
    let register = "SELECT oncebox.register_scope('conform:test')";
    consumer.pool.get().await.unwrap().batch_execute(register).await.unwrap();
    async move {
        let messages = durable.messages().await.unwrap().take_until(shutdown.cancelled());
        messages.for_each_concurrent(3, async |message| consumer.deal_with(message.unwrap()).await).await;
        Ok(())
    }
}

impl Consumer {
    async fn deal_with(&self, message: Message) {
        let header = |name| message.headers.as_ref().and_then(|headers| headers.get(name)).unwrap().as_str();
        let received = Received {
            key: header("Idempotency-Key"),
            tenant: header("Tenant"),
            scenario: header("Scenario"),
            message: &message,
        };
        let again = self.run(&received).await.unwrap();
        if again.is_none() && message.info().unwrap().delivered > 1 {
            let owner = [(&received.key as &(dyn ToSql + Sync), Type::TEXT), (&received.tenant, Type::TEXT)];
            self.pool.get().await.unwrap().query_typed(FORGET, &owner).await.unwrap();
        }
        let kind = again.map_or(AckKind::Ack, |after| AckKind::Nak(Some(after)));
        message.ack_with(kind).await.unwrap();
    }

    /// Runs a message; the pause, if it is to come again.
    async fn run(&self, received: &Received<'_>) -> Result<Option<Duration>, Error> {
        for round in 1.. {
            // The settings of a handler for its session go with the connection.
            let mut client = Object::take(self.pool.get().await.unwrap());
            let (failure, xid) = match self.attempt(&mut client, received).await? {
                Ok(again) => return Ok(again),
                Err(failed) => failed,
            };
            drop(client);
            let client = self.pool.get().await.unwrap();
            let is_committed = match &xid {
                Some(xid) => {
                    let row = [
                        (&received.tenant as _, Type::TEXT),
                        (&received.key as _, Type::TEXT),
                        (xid as _, Type::TEXT),
                    ];
                    client.query_typed_one(COMMITTED, &row).await?.get(0)
                }
                None => false,
            };
            let reason = match failure {
                _ if is_committed => "the handler sent COMMIT by itself".to_owned(),
                Failure::Conflict(_) if round < 5 => continue,
                Failure::Dead(reason) => reason,
                failure => {
                    let (after, reason) = match failure {
                        Failure::RetryAfter(after) => (after, "asked for a retry".to_owned()),
                        Failure::Conflict(reason) | Failure::Attempt(reason) | Failure::Dead(reason) => {
                            (PAUSE, reason)
                        }
                    };
                    if self.failed(received, after, &reason).await? < ATTEMPTS {
                        return Ok(Some(after));
                    }
                    format!("delivery limit of 3 reached: {reason}")
                }
            };
            let committed_by = xid.filter(|_| is_committed);
            let parameters: [(&(dyn ToSql + Sync), Type); 6] = [
                (&received.key, Type::TEXT),
                (&&received.message.payload[..], Type::BYTEA),
                (&reason, Type::TEXT),
                (&received.tenant, Type::TEXT),
                (&committed_by, Type::TEXT),
                (&received.scenario, Type::TEXT),
            ];
            let buried: String = client.query_typed_one(BURY, &parameters).await?.get(0);
            return Ok((buried == "in_flight").then_some(PAUSE));
        }
        unreachable!("the last round returns")
    }

    /// Counts a failed attempt; how many have failed.
    async fn failed(&self, received: &Received<'_>, after: Duration, reason: &str) -> Result<i64, Error> {
        let info = received.message.info().unwrap();
        let sequence = i64::try_from(info.stream_sequence).unwrap();
        let stored_at = i64::try_from(info.published.unix_timestamp_nanos() / 1000).unwrap();
        let parameters: [(&(dyn ToSql + Sync), Type); 8] = [
            (&received.key, Type::TEXT),
            (&received.tenant, Type::TEXT),
            (&info.stream, Type::TEXT),
            (&sequence, Type::INT8),
            (&stored_at, Type::INT8),
            (&reason, Type::TEXT),
            (&received.message.subject.as_str(), Type::TEXT),
            (&after.as_secs_f64(), Type::FLOAT8),
        ];
        let client = self.pool.get().await.unwrap();
        Ok(client.query_typed_one(FAILED, &parameters).await?.get(0))
    }

    /// Claims and handles a message in one transaction; or why not, and the transaction that has
    /// claimed.
    async fn attempt(
        &self,
        client: &mut ClientWrapper,
        received: &Received<'_>,
    ) -> Result<Result<Option<Duration>, (Failure, Option<String>)>, Error> {
        let cancel = client.cancel_token();
        let begin =
            client.build_transaction().isolation_level(IsolationLevel::ReadCommitted).deferrable(true);
        let transaction = begin.start().await?;
        let parameters: [(&(dyn ToSql + Sync), Type); 3] = [
            (&received.key, Type::TEXT),
            (&&received.message.payload[..], Type::BYTEA),
            (&received.tenant, Type::TEXT),
        ];
        let claimed = transaction.query_typed_one(CLAIM, &parameters).await?;
        let xid: Option<String> = claimed.get(1);
        match claimed.get(0) {
            "new" => {}
            "in_flight" => return Ok(Ok(Some(PAUSE))),
            "mismatch" => return Ok(Err((Failure::Dead("another payload".to_owned()), None))),
            _ => return Ok(Ok(None)),
        }
        let told: Told = serde_json::from_slice(&received.message.payload).unwrap();
        let deliveries = received.message.info().unwrap().delivered.unsigned_abs();
        let handling = AssertUnwindSafe(self.told.handle(&told, deliveries, &transaction)).catch_unwind();
        let failure = match timeout(LIMIT, handling).await {
            Ok(Ok(Ok(outcome))) => match settlement(outcome) {
                Ok((reply, status)) => {
                    let parameters: [(&(dyn ToSql + Sync), Type); 4] = [
                        (&received.key, Type::TEXT),
                        (&reply, Type::TEXT),
                        (&received.tenant, Type::TEXT),
                        (&status, Type::TEXT),
                    ];
                    match transaction.query_typed_one(SETTLE, &parameters).await {
                        Ok(_) => {
                            transaction.commit().await?;
                            return Ok(Ok(None));
                        }
                        Err(error) => of_settle(&error),
                    }
                }
                Err(failure) => failure,
            },
            Ok(Ok(Err(error))) => of_handler(&error),
            Ok(Err(_)) => Failure::Attempt("the handler panicked".to_owned()),
            Err(_) => {
                cancel.cancel_query(NoTls).await?;
                Failure::Attempt("the handler took too long".to_owned())
            }
        };
        // A cancel that comes late hits the rollback; the connection is given up anyway.
        match transaction.rollback().await {
            Err(error) if error.code() != Some(&SqlState::QUERY_CANCELED) => return Err(error),
            _ => {}
        }
        Ok(Err((failure, xid)))
    }
}

/// The reply as JSON and the status that a key ends with.
fn settlement(outcome: Outcome<Option<Reply>>) -> Result<(Option<String>, &'static str), Failure> {
    let (reply, status) = match outcome {
        Outcome::Done(reply) => (reply, "completed"),
        Outcome::Reject(reply) => (reply, "rejected"),
        Outcome::Retry(after) => return Err(Failure::RetryAfter(after)),
        Outcome::Dead(reason) => return Err(Failure::Dead(reason)),
        _ => panic!("no scenario snoozes"),
    };
    let Ok(json) = reply.map(|reply| serde_json::to_string(&reply)).transpose() else {
        return Err(Failure::Dead("the reply has no JSON".to_owned()));
    };
    match json {
        Some(json) if json.len() > REPLY_MAX => {
            Err(Failure::Dead("the reply has more than 1 MiB".to_owned()))
        }
        json => Ok((json, status)),
    }
}

fn of_handler(error: &HandlerError) -> Failure {
    let state = error.source().downcast_ref::<Error>().and_then(Error::code);
    match state {
        Some(&SqlState::T_R_SERIALIZATION_FAILURE | &SqlState::T_R_DEADLOCK_DETECTED) => {
            Failure::Conflict(error.to_string())
        }
        _ => Failure::Attempt(error.to_string()),
    }
}

fn of_settle(error: &Error) -> Failure {
    Failure::Attempt(match error.code().map(SqlState::code) {
        Some("OB010") => "the handler ended the transaction by itself".to_owned(),
        Some("25P02") => "the transaction was aborted".to_owned(),
        _ => error.to_string(),
    })
}
