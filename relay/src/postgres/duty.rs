//! Which of the relays of an outbox is on duty: it does the trickle and is woken by producers,
//! while the others stand by. See `pass/standby.rs`.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use tokio_postgres::{Client, Error, SimpleQueryMessage};

use super::{Store, parameter::typed, session::Session};
use crate::{backoff::Backoff, delivery::snapshot::Snapshot, error::StoreError};

/// So many relays look after each other as often as each of them would alone.
const WATCHFUL: usize = 4;
/// A relay of a large fleet looks so much less often than one of two. This bounds what it costs
/// when all others die at once.
const RARER_MAX: usize = 4;

/// A statement that has taken so long, and whose client takes nothing of the answer, is ended.
const UNREAD_SECONDS: f64 = 18.0;

/// Who is on duty.
#[derive(Clone, Debug)]
pub(crate) enum Duty {
    /// This relay, or nobody knows: several that work share the lanes as ever.
    Own,
    /// Another relay; with a snapshot of now, taken about once a second, or more rarely in a fleet.
    Another(Snapshot),
}

/// The relays of an outbox, counted about once a minute by what each writes down of itself.
#[derive(Debug, Default)]
pub(crate) struct Fleet(AtomicUsize);

impl Fleet {
    pub(super) fn note_relays(&self, count: usize) {
        self.0.store(count, Ordering::Relaxed);
    }

    /// The pause, jittered by half, between two looks at the relay on duty. One of a few relays
    /// looks so often; of many each looks more rarely, and all together more often than that.
    pub(crate) fn pause(&self, alone: Duration) -> Duration {
        let rarer = (self.0.load(Ordering::Relaxed) / WATCHFUL).clamp(1, RARER_MAX);
        let pause = alone.saturating_mul(u32::try_from(rarer).unwrap_or(1));
        Backoff { first: pause, max: pause }.delay(0)
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_many_relays_looks_more_rarely_and_all_together_more_often() {
        let alone = Duration::from_millis(800);
        for relays in [0, 1, 2, 3, 4, 7, 8, 15, 16, 50, 1_000] {
            let fleet = Fleet::default();
            fleet.note_relays(relays);
            let pauses: Vec<f64> = (0..1_000).map(|_| fleet.pause(alone).as_secs_f64()).collect();
            let longest = pauses.iter().copied().fold(0.0, f64::max);
            assert!(longest <= if relays < 8 { 1.2 } else { 4.8 }, "{relays}: {longest}");
            let mean = pauses.iter().sum::<f64>() / 1_000.0;
            if relays >= 16 {
                assert!(mean > 2.5, "{relays}: {mean}");
            }
            #[expect(clippy::cast_precision_loss, reason = "a few")]
            let others = relays.max(2) as f64 - 1.0;
            assert!(mean / others <= 0.9, "{relays}: {mean}");
        }
    }
}
