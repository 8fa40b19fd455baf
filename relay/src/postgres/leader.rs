//! Which of the relays of an outbox is the leader: it does the trickle and is woken by producers,
//! while the others are standbys. See `pass/standby.rs`.

use oncebox_connect::postgres::typed;
use tokio_postgres::{Client, Error, SimpleQueryMessage};

use super::{Store, session::Session};
use crate::{delivery::Snapshot, error::StoreError};

/// A statement that has taken so long, and whose client takes nothing of the answer, is ended.
const UNREAD_SECONDS: f64 = 18.0;

/// Which relay is the leader.
#[derive(Clone, Debug)]
pub(crate) enum Leader {
    /// This relay, or nobody knows: several that work share the lanes as ever.
    This,
    /// Another relay; with a snapshot of now, taken about once a second, or more rarely in a fleet.
    Another(Snapshot),
}

impl Store {
    /// Tries to be the leader for as long as this connection lasts.
    pub(super) async fn ask_to_lead(&self, client: &Client) -> Result<Leader, Error> {
        let answers = client.simple_query(&self.sql.lead).await?;
        let row = answers.iter().find_map(|answer| match answer {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        let snapshot = row.filter(|row| row.get("is_own") == Some("f")).and_then(|row| row.get("snapshot"));
        Ok(snapshot.and_then(Snapshot::parse).map_or(Leader::This, Leader::Another))
    }
}

impl Store {
    /// Ends the sessions that hold lanes for a client that reads no more, and returns which.
    pub(crate) async fn end_unread(&self) -> Result<Vec<i32>, StoreError> {
        let connection = self.connection().await?;
        let rows = connection.query_typed(&self.sql.end_unread, &typed(&[&UNREAD_SECONDS])).await;
        let rows = rows.map_err(|source| StoreError::Statement("look for suspended relays", source))?;
        Ok(rows.iter().filter(|row| row.get("ended")).map(|row| row.get("pid")).collect())
    }
}

impl Session {
    /// About how many messages are due, if they are many.
    pub(crate) async fn behind(&self) -> Result<i64, StoreError> {
        let rows = self.query("see how far the relays are behind", &self.store.sql.behind, &[]).await?;
        Ok(rows.first().map_or(0, |row| row.get("messages")))
    }
}
