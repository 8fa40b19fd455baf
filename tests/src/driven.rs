//! The handler that tests run through every driver of PostgreSQL, in process and as a program.

use oncebox_inbox::{Context, Handler, HandlerError, Outcome};
use oncebox_schema::{Driver, Value};
use serde::{Deserialize, Serialize};

/// Whose keys the tests of drivers claim.
pub const SCOPE: &str = "tests:driven";

/// The payload of every message here: its number decides the behaviour of its handler.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// One of the constants below; any other has the effect, and says so.
    pub n: i64,
}

/// Has the effect, and no reply.
pub const SILENT: i64 = -1;
/// Says no, and has the effect.
pub const REJECTED: i64 = -2;
/// Is given up by its handler.
pub const DEAD: i64 = -3;
/// Panics.
pub const PANICS: i64 = -4;
/// Goes on after a statement has failed.
pub const ABORTED: i64 = -5;
/// Commits by itself.
pub const COMMITS: i64 = -6;
/// Breaks a constraint.
pub const REFUSED: i64 = -7;
/// Is not now.
pub const SNOOZES: i64 = -8;
/// Takes longer than it may.
pub const SLOW: i64 = -9;
/// Loses a race, until the table `won` has a row.
pub const CONFLICT: i64 = -10;
/// Is ended by PostgreSQL as one of a deadlock, two times of three.
pub const DEADLOCK: i64 = -11;
/// Is ended by PostgreSQL for its snapshot, two times of three.
pub const TOO_OLD: i64 = -12;
/// Says at which level it runs.
pub const LEVEL: i64 = -13;

/// One row in `effect`, written through a driver.
#[derive(Clone, Debug, Default)]
pub struct Effect<D>(std::marker::PhantomData<fn() -> D>);

impl<D> Effect<D> {
    /// The handler.
    #[must_use]
    pub fn new() -> Self {
        Self(std::marker::PhantomData)
    }
}

impl<D: Driver> Handler<D> for Effect<D> {
    type Message = Job;
    type Reply = Option<String>;

    async fn handle(
        &self,
        mut cx: Context<'_, D>,
        job: Job,
    ) -> Result<Outcome<Option<String>>, HandlerError> {
        let (key, tenant) = (cx.key().as_str().to_owned(), cx.tenant().to_owned());
        let connection = D::connection(cx.transaction_mut());
        let insert =
            "INSERT INTO effect (key, n, line) VALUES ($1::text, $2::bigint, $3::text) RETURNING n::text";
        let values = [Value::Text(Some(&key)), Value::Integer(Some(job.n)), Value::Text(Some(&tenant))];
        let row = D::query(connection, insert, &values, false).await?.unwrap_or_default();
        let n = row.text(0).unwrap_or_default().to_owned();
        let outcome = match job.n {
            SILENT => Outcome::done(None),
            REJECTED => Outcome::reject(Some("no".to_owned())),
            DEAD => Outcome::dead("no use"),
            PANICS => panic!("as it was told"),
            ABORTED => {
                let failed = D::query(connection, "SELECT (1 / 0)::text", &[], false).await;
                assert!(failed.is_err(), "PostgreSQL divides by zero");
                Outcome::done(Some("went on".to_owned()))
            }
            COMMITS => {
                D::batch(connection, "COMMIT").await?;
                Outcome::done(Some("ended".to_owned()))
            }
            REFUSED => {
                D::query(connection, "SELECT (1 / 0)::text", &[], false).await?;
                Outcome::done(None)
            }
            SNOOZES => Outcome::snooze(std::time::Duration::from_secs(60), "the ledger is closed"),
            SLOW => {
                std::future::pending::<()>().await;
                Outcome::done(None)
            }
            CONFLICT => {
                let sql = "SELECT count(*)::text FROM won";
                match D::query(connection, sql, &[], false).await?.unwrap_or_default().text(0) {
                    Some("0") => return Err(HandlerError::conflict("too late")),
                    _ => Outcome::done(Some("won".to_owned())),
                }
            }
            DEADLOCK | TOO_OLD | LEVEL => {
                let sql = match job.n {
                    DEADLOCK => "SELECT lose('40P01', 'deadlock detected')",
                    TOO_OLD => "SELECT lose('40001', 'could not serialize access')",
                    _ => "SELECT current_setting('transaction_isolation')",
                };
                let row = D::query(connection, sql, &[], false).await?.unwrap_or_default();
                Outcome::done(row.text(0).map(str::to_owned))
            }
            _ => Outcome::done(Some(format!("did {n}"))),
        };
        Ok(outcome)
    }
}
