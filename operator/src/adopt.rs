//! A copy of an outbox, or one that has moved, is adopted: relays may serve it from then on.

use oncebox_connect::{
    error::RelayError,
    postgres::{Parameter, typed},
};
use serde::Serialize;
use tokio_postgres::error::SqlState;

use super::{
    Operator, Result, failed,
    shown::{Changed, Shown},
};

/// The error of `adopt()` when there is nothing to adopt.
const NO_COPY: &str = "OB013";

/// The ways to adopt an outbox that relays take for a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adoption {
    /// The original has moved here: it goes on under the same identity.
    Moved,
    /// It becomes an outbox of its own, without the messages that were due or delayed.
    WithoutBacklog,
    /// It becomes an outbox of its own, and sends them too, under ids of its own.
    WithBacklog,
}

/// An outbox that was adopted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Adopted {
    /// Its identity, the first part of each `Nats-Msg-Id`.
    pub outbox: String,
    /// Messages that were due, set aside, dead or delayed: given up, or sent. 0 when it has moved.
    pub backlog: i64,
    /// Which messages these were, for a run that acts on no other.
    #[serde(skip)]
    pub shown: Shown,
    /// Where relays have served the same outbox within the last minute. If they go on, those of an
    /// outbox that has moved here fall silent again.
    pub rival: Option<String>,
}

impl Operator {
    /// Lets relays serve an outbox that they take for a copy. A dry run does all of it, for as long
    /// holds the same locks, and takes it back; an identity that it has given is not the one of the
    /// next run. Nothing is done where the backlog is not the one that was confirmed.
    ///
    /// # Errors
    /// It is none, transactions that have enqueued stay open, or PostgreSQL refused or went away:
    /// nothing is changed.
    pub async fn adopt(
        &mut self,
        adoption: Adoption,
        dry_run: bool,
        confirmed: Option<&Shown>,
    ) -> Result<Result<Adopted, Changed>> {
        let (stamp, sql) = (self.stamp.clone(), self.sql.adopt.clone());
        let (is_moved, discards) = (adoption == Adoption::Moved, adoption == Adoption::WithoutBacklog);
        let transaction = self.begin().await?;
        let parameters: [&dyn Parameter; 4] = [&is_moved, &discards, &stamp.operator, &stamp.note];
        let row = match transaction.query_typed(&sql, &typed(&parameters)).await {
            Err(error) if error.code().map(SqlState::code) == Some(NO_COPY) => {
                return Err(RelayError::NoCopy);
            }
            row => row.map_err(failed("adopt the outbox"))?,
        };
        let first = row.first();
        let backlog = first.map_or(0, |row| row.get("backlog"));
        let digest = first.and_then(|row| row.get::<_, Option<&str>>("digest")).unwrap_or_default();
        // The same messages are given up, or sent: a token stands for one of the two.
        let shown = Shown::of(i64::unsigned_abs(backlog), digest, discards.into());
        if let Some(confirmed) = confirmed.filter(|confirmed| **confirmed != shown) {
            return Ok(Err(confirmed.changed(&shown)));
        }
        match dry_run {
            true => transaction.rollback().await.map_err(failed("take it back"))?,
            false => transaction.commit().await.map_err(failed("commit"))?,
        }
        Ok(Ok(Adopted {
            outbox: first.map(|row| row.get("identity")).unwrap_or_default(),
            backlog,
            shown,
            rival: first.and_then(|row| row.get("rival")),
        }))
    }
}
