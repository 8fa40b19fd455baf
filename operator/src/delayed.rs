//! Delayed messages: list and cancel.

use std::time::SystemTime;

use oncebox_connect::postgres::Parameter;
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    BATCH, Operator, Result,
    action::{Acting, Done, Listed, Page, Scan, Verb},
    is_selected, next_id,
    rows::{FromRow, from_row},
    selection::{Place, Selection},
    time::Time,
};

/// A message that waits for its time, without headers and payload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct DelayedMessage {
    /// Its key.
    pub key: String,
    /// Its subject.
    pub subject: String,
    /// Its ordering key.
    pub ordering_key: Option<String>,
    /// When it is due.
    pub not_before: Time,
    /// When it was enqueued.
    pub created_at: Time,
    /// The size of its payload.
    pub payload_bytes: i64,
    #[serde(skip)]
    id: i64,
}

impl DelayedMessage {
    /// Its place in the list, for the page after it.
    #[must_use]
    pub fn place(&self) -> Place {
        Place::Due(*self.not_before, self.id)
    }
}

impl Operator {
    /// Delayed messages in the order of their times, `limit` at most.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn delayed(&self, of: &Selection, limit: usize) -> Result<Vec<DelayedMessage>> {
        self.list(of, limit, |_| true).await
    }
}

impl Listed for DelayedMessage {
    async fn page(operator: &Operator, of: &Selection, scan: &Scan) -> Result<Page<Self>> {
        let (after, after_id) = match scan.after {
            Place::Due(at, id) => (at, id),
            _ => (SystemTime::UNIX_EPOCH, 0),
        };
        let (subject, Selection { key, ordering_key, .. }) = (of.expression(), of);
        let parameters: [&dyn Parameter; 6] = [&after, &after_id, &BATCH, key, &subject, ordering_key];
        let rows =
            operator.query("look at delayed messages", &operator.sql.look_delayed, &parameters).await?;
        let next = next_id(&rows).zip(rows.last());
        let next = next.map(|(id, row)| Place::Due(row.get("not_before"), id));
        Ok(Page::new(rows.iter().filter(is_selected).map(Self::from_row).collect(), next))
    }

    fn name(&self, _: &Acting<'_>) -> String {
        self.id.to_string()
    }

    fn came_at(&self) -> SystemTime {
        *self.created_at
    }

    /// Neither cancels nor counts a message that is in the log by then.
    async fn change(
        operator: &mut Operator,
        acting: &Acting<'_>,
        rows: &[Self],
        done: &mut Done,
    ) -> Result<()> {
        acting.is_one_of(&[Verb::CancelDelayed])?;
        let keys: Vec<&str> = rows.iter().map(|row| row.key.as_str()).collect();
        let cancel = "cancel delayed messages";
        done.done += operator.change(cancel, |sql| &sql.cancel_delayed, &[&keys], false).await?.len() as u64;
        Ok(())
    }
}

from_row!(DelayedMessage: key, subject, ordering_key, not_before, created_at, payload_bytes, id);
