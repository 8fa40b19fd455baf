//! The ring of segments, which turns sooner than relays turn it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::{task::JoinSet, time::sleep};
use tokio_util::sync::CancellationToken;

use crate::scenarios::CALM;

/// How often the ring turns, and how long a drained segment is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ring {
    pub(crate) turn: Duration,
    pub(crate) retention: Duration,
}

/// Turns until it is stopped.
#[derive(Debug)]
pub(crate) struct Turning {
    stop: CancellationToken,
    task: JoinSet<(usize, usize)>,
}

impl Turning {
    pub(crate) fn start(database_url: String, ring: Ring) -> Self {
        let (stop, mut task) = (CancellationToken::new(), JoinSet::new());
        task.spawn(turn(database_url, ring, stop.clone()));
        Self { stop, task }
    }

    /// How many turns there were, and how many segments were emptied.
    pub(crate) async fn stop(self) -> Result<(usize, usize)> {
        self.stop.cancel();
        let (turns, emptied) = self.task.join_all().await.into_iter().next().context("the ring turns")?;
        ensure!(turns > 0, "the ring never turned");
        Ok((turns, emptied))
    }
}

/// Turns the ring, and empties old segments, as relays do; returns how often. PostgreSQL may be
/// away.
async fn turn(database_url: String, ring: Ring, stop: CancellationToken) -> (usize, usize) {
    let (mut turns, mut emptied) = (0, 0);
    while !stop.is_cancelled() {
        tokio::select! {
            () = stop.cancelled() => {}
            () = sleep(ring.turn) => {}
        }
        if let Ok((turned, number)) = turn_once(&database_url, ring.retention).await {
            turns += usize::from(turned);
            emptied += number;
        }
    }
    (turns, emptied)
}

async fn turn_once(database_url: &str, retention: Duration) -> Result<(bool, usize)> {
    let mut client = oncebox_tests::pool(database_url, 1, CALM)?.get().await?;
    let transaction = client.transaction().await?;
    transaction.execute("SELECT FROM oncebox.maintenance FOR UPDATE", &[]).await?;
    transaction.execute("SELECT oncebox.drain_segments()", &[]).await?;
    let old = "SELECT * FROM oncebox.empty_segment($1)";
    let emptied = transaction.query(old, &[&retention.as_secs_f64()]).await?.len();
    let now = "SELECT pg_sequence_last_value('oncebox.turn')";
    let before: i64 = transaction.query_one(now, &[]).await?.get(0);
    transaction.execute("SELECT oncebox.end_turn(0, 200, 0)", &[]).await?;
    let after: i64 = transaction.query_one(now, &[]).await?.get(0);
    transaction.commit().await?;
    Ok((after > before, emptied))
}
