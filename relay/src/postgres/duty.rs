//! Which of the relays of an outbox is on duty: it does the trickle and is woken by producers,
//! while the others stand by. See `pass/standby.rs`.

use tokio_postgres::{Client, Error, SimpleQueryMessage};

use super::{Store, session::Session};
use crate::{delivery::snapshot::Snapshot, error::StoreError};

/// Who is on duty.
#[derive(Clone, Debug)]
pub(crate) enum Duty {
    /// This relay, or nobody knows: several that work share the lanes as ever.
    Own,
    /// Another relay; with a snapshot of now, taken about once a second.
    Another(Snapshot),
}

impl Store {
    /// Tries to be on duty for as long as this connection lasts.
    pub(super) async fn ask_for_duty(&self, client: &Client) -> Result<Duty, Error> {
        let answers = client.simple_query(&self.sql.duty).await?;
        let row = answers.iter().find_map(|answer| match answer {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        let snapshot = row.filter(|row| row.get("is_own") == Some("f")).and_then(|row| row.get("snapshot"));
        Ok(snapshot.and_then(Snapshot::parse).map_or(Duty::Own, Duty::Another))
    }
}

impl Session {
    /// About how many messages are due, if they are many.
    pub(crate) async fn behind(&self) -> Result<i64, StoreError> {
        let rows = self.query("see how far the relays are behind", &self.store.sql.behind, &[]).await?;
        Ok(rows.first().map_or(0, |row| row.get("messages")))
    }
}
