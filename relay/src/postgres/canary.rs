//! The steps of canaries: `schema/migrations/0026_canary.sql` has their rules.

use std::sync::Arc;

use oncebox_connect::postgres::Parameter;

use super::{Store, session::Session};
use crate::{delivery::Letter, error::StoreError};

/// A step, whose transaction is open while a letter is to be published.
#[derive(Debug)]
pub(crate) enum Step {
    /// Nothing is to be done now, or another relay does it.
    Idle,
    /// A row was retried, or skipped, by the database alone.
    Done,
    /// This letter is to be published, and then the transaction committed.
    Publish(Box<Session>, Letter),
}

impl Store {
    /// The canaries that go on.
    pub(crate) async fn running_canaries(&self) -> Result<Vec<i64>, StoreError> {
        let connection = self.connection().await?;
        let rows = connection.query_typed(&self.sql.running_canaries, &[]).await;
        let rows = rows.map_err(|source| StoreError::Statement("look for canaries", source))?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Begins the next step of a canary.
    pub(crate) async fn take_canary_step(self: &Arc<Self>, canary: i64) -> Result<Step, StoreError> {
        let session = self.begin().await?;
        let rows = session.query("take the step of a canary", &self.sql.take_canary_step, &[&canary]).await?;
        let row = rows.first().expect("a function without a set returns a row");
        if row.get::<_, Option<i64>>("letter").is_some() {
            let letter = Letter {
                outbox: row.get("outbox"),
                key: row.get("key"),
                subject: row.get("subject"),
                headers: row.get("headers"),
                payload: row.get("payload"),
                number: row.get("number"),
            };
            return Ok(Step::Publish(Box::new(session), letter));
        }
        session.commit().await?;
        Ok(if row.get("moved") { Step::Done } else { Step::Idle })
    }

    /// Notes why the next row of a canary could not be retried; whether that is new.
    pub(crate) async fn note_canary_fault(
        self: &Arc<Self>,
        canary: i64,
        reason: &str,
    ) -> Result<bool, StoreError> {
        let parameters: [&dyn Parameter; 2] = [&canary, &reason];
        let rows = self.ask("note the fault of a canary", &self.sql.note_canary_fault, &parameters).await?;
        Ok(rows.first().is_some_and(|row| row.get::<_, Option<bool>>(0) == Some(true)))
    }
}
