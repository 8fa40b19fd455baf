//! Reads again in lanes that a transaction has locked and read.

use oncebox_connect::postgres::Parameter;

use super::{session::Session, store::message};
use crate::{
    delivery::{Message, Snapshot},
    error::StoreError,
};

/// The messages that have come since an earlier read.
#[derive(Debug)]
pub(crate) struct Come {
    pub(crate) messages: Vec<Message>,
    /// The snapshot that it was read in, as PostgreSQL writes it.
    pub(crate) snapshot: String,
}

/// How much is read at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadOn {
    /// In all lanes together.
    pub(crate) messages_max: usize,
    /// Of each payload.
    pub(crate) bytes_max: usize,
    pub(crate) dead_blocks: bool,
}

impl Session {
    /// The messages that have come into these lanes, above their floors, since a snapshot; `None`
    /// when there are more than may be read, or the turn of the log has ended: then none of them
    /// counts as read.
    pub(crate) async fn read_on(
        &self,
        lanes: &[i16],
        floors: &[i64],
        since: &Snapshot,
        limits: ReadOn,
    ) -> Result<Option<Come>, StoreError> {
        let (xmax, open) = (since.xmax().to_string(), since.open());
        let open: Vec<String> = open.iter().map(u64::to_string).collect();
        let messages_max = i64::try_from(limits.messages_max.saturating_add(1)).unwrap_or(i64::MAX);
        let bytes_max = i32::try_from(limits.bytes_max).unwrap_or(i32::MAX);
        let (reading, turn) = self.store.log.reading();
        let parameters: [&dyn Parameter; 8] =
            [&lanes, &floors, &xmax, &open, &messages_max, &bytes_max, &limits.dead_blocks, &turn];
        let rows = self.query("read on", &reading.read_on, &parameters).await?;
        let Some(snapshot) = rows.first().map(|row| row.get("snapshot")) else { return Ok(None) };
        let found = rows.iter().filter(|row| row.get::<_, Option<i16>>(0).is_some());
        let outbox = self.store.outbox();
        let mut messages: Vec<Message> = found.map(|row| message(row, &outbox, None, None)).collect();
        let is_cut = |message: &Message| message.payload_bytes > limits.bytes_max;
        if messages.len() > limits.messages_max || messages.iter().any(is_cut) {
            return Ok(None);
        }
        messages.sort_unstable_by_key(|message| (message.lane, message.id));
        Ok(Some(Come { messages, snapshot }))
    }
}
