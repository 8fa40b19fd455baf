//! Reads large payloads in pieces.

use std::collections::HashMap;

use bytes::Bytes;
use oncebox_connect::postgres::Parameter;

use super::{room::PIECE, session::Session};
use crate::{delivery::Message, error::StoreError};

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
