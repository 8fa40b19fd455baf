//! Reading messages beside the claim: how much memory there is, payloads in pieces, messages that
//! came after the claim, and the tokens of throttles.

use std::collections::HashMap;

use bytes::Bytes;
use oncebox_connect::postgres::Parameter;
use tokio_postgres::Row;

use super::{session::Session, store::message};
use crate::{
    delivery::{
        Message, Pauses, Snapshot,
        pause::{Tokens, Wanted},
    },
    error::StoreError,
};

/// Bytes of a large payload that are read at a time; a smaller one comes with its row.
pub(super) const PIECE: i32 = 1024 * 1024;

/// Which of the due messages a pass may hold.
pub(crate) struct Room<'a> {
    /// A larger payload is left out, since the server would not take it: see
    /// [`Message::is_left_out`].
    pub(crate) payload_max: usize,
    /// Whether a payload of this number of bytes may be held as well.
    pub(crate) admit: &'a mut (dyn FnMut(usize) -> bool + Send),
}

impl Room<'_> {
    pub(super) fn with_row_max(&self) -> i32 {
        with_row_max(self.payload_max)
    }

    /// Whether the payload of a row need not be there: it is decided upon without.
    fn is_left_out(&self, row: &Row) -> bool {
        row.get("blocked") || payload_bytes(row) > self.payload_max
    }

    /// Whether the row may be held, with its payload unless that is left out.
    pub(super) fn admits(&mut self, row: &Row) -> bool {
        let bytes = if self.is_left_out(row) { 0 } else { payload_bytes(row) };
        (self.admit)(bytes)
    }
}

/// Up to this size payloads come with their rows.
pub(super) fn with_row_max(payload_max: usize) -> i32 {
    i32::try_from(payload_max).unwrap_or(PIECE).min(PIECE)
}

/// The size of the payload, which may have come with the row or not.
fn payload_bytes(row: &Row) -> usize {
    usize::try_from(row.get::<_, i32>("payload_bytes")).unwrap_or(0)
}

/// Place and size of a payload that did not come with its row and is to be read.
pub(super) fn large(row: &Row, room: &Room<'_>) -> Option<((i16, i64), usize)> {
    let is_there = row.get::<_, Option<&[u8]>>("payload").is_some();
    (!is_there && !room.is_left_out(row)).then(|| ((row.get(0), row.get(1)), payload_bytes(row)))
}

impl Session {
    /// Reads payloads that are too large to come with their rows, in pieces: the client's buffers
    /// grow to twice the longest row, and stay so.
    pub(super) async fn read_payloads(
        &self,
        messages: &mut [Message],
        large: &HashMap<(i16, i64), usize>,
    ) -> Result<(), StoreError> {
        for message in messages {
            let Some(bytes) = large.get(&(message.lane, message.id)).copied() else { continue };
            let mut payload = Vec::with_capacity(bytes);
            for from in (1..=i32::try_from(bytes).unwrap_or(i32::MAX)).step_by(PIECE as usize) {
                payload.extend_from_slice(&self.piece(message, from).await?);
            }
            assert_eq!(payload.len(), bytes, "the log is append-only");
            message.payload = payload.into();
        }
        Ok(())
    }

    /// A piece of a message's payload, from this byte on, counted from 0.
    pub(crate) async fn payload_piece(&self, message: &Message, from: usize) -> Result<Bytes, StoreError> {
        self.piece(message, i32::try_from(from).map_or(i32::MAX, |from| from.saturating_add(1))).await
    }

    async fn piece(&self, message: &Message, from: i32) -> Result<Bytes, StoreError> {
        let parameters: [&dyn Parameter; 4] = [&message.lane, &message.id, &from, &PIECE];
        let rows = self.query("read a payload", &self.store.sql.payload, &parameters).await?;
        let piece = rows.first().map(|row| row.get::<_, &[u8]>(0));
        Ok(Bytes::copy_from_slice(piece.unwrap_or_default()))
    }
}

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

impl Session {
    /// Marks the messages that are not to be sent now, and takes the tokens of the others.
    pub(crate) async fn mark_paused(
        &self,
        pauses: &Pauses,
        messages: &mut [Message],
    ) -> Result<(), StoreError> {
        if pauses.is_empty() {
            return Ok(());
        }
        let Wanted { places, kinds, values, rates, messages: count } = pauses.wanted(messages);
        let tokens = if places.is_empty() {
            Tokens::default()
        } else {
            let sql = &self.store.sql.take_tokens;
            let rows = self.query("take tokens", sql, &[&places, &kinds, &values, &rates, &count]).await?;
            rows.iter().map(|row| (row.get("place"), row.get("tokens"))).collect()
        };
        pauses.mark(messages, tokens);
        Ok(())
    }
}
