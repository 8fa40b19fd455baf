//! Delayed messages: `run` around `run_once`.
//!
//! A message that must not be sent before its time waits in the table `delayed`. When it is due,
//! one transaction deletes it there and inserts it into the log, where it is an ordinary message
//! from then on: it is in one of the two, also after a crash. Of many relays one moves at a time.
//! It moves a message of an ordering key only if no message of an earlier time stays in the table,
//! not even a locked one, so the messages of an ordering key get their ids in the order of their
//! times.
//!
//! The database's clock decides which messages are due. It also says in how many seconds the next
//! one is, so the mover sleeps until then; it finds a message that is enqueued meanwhile within a
//! second. `enqueue_at` notifies no relay: a transaction that enqueues may be prepared (see
//! `sleep.sql`).

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::{
    backoff::Backoff,
    error::{RelayError, error_chain},
    postgres::{
        Leader, Store,
        delayed::{DelayedPlace, Moved},
    },
};

/// The pause between looks, jittered by half: at most a second. A message whose delay is shorter
/// may be late by as much.
const LOOK: Backoff = Backoff { first: Duration::from_millis(666), max: Duration::from_millis(666) };
/// The pause of a standby, in a fleet of a few relays: it moves only messages that the leader
/// leaves undone.
const LOOK_ALONG: Duration = Duration::from_secs(3);
const STEP_TIMEOUT: Duration = Duration::from_secs(45);
const FAILING: Backoff = Backoff { first: Duration::from_millis(500), max: Duration::from_secs(10) };

/// Moves delayed messages into the log when they are due; of many relays one at a time.
#[derive(Debug)]
pub struct Mover {
    store: Arc<Store>,
    /// This round has looked at all messages up to here: it moved each one, or others hold it.
    place: DelayedPlace,
}

impl Mover {
    pub(crate) fn new(store: Arc<Store>) -> Self {
        Self { store, place: DelayedPlace::default() }
    }

    /// Moves until shutdown. The workers report an outage of PostgreSQL.
    pub(crate) async fn run(mut self, mut leader: watch::Receiver<Leader>, shutdown: CancellationToken) {
        let mut failures = 0_u32;
        while !shutdown.is_cancelled() {
            let store = Arc::clone(&self.store);
            let pause = match store.in_turn(STEP_TIMEOUT, self.run_once()).await {
                Ok(Ok(Moved { more: true, .. })) => {
                    failures = 0;
                    continue;
                }
                Ok(Ok(_)) if matches!(*leader.borrow(), Leader::Another(_)) => {
                    failures = 0;
                    self.store.fleet.pause(LOOK_ALONG)
                }
                Ok(Ok(Moved { next_due, .. })) => {
                    failures = 0;
                    let look = LOOK.delay(0);
                    next_due.map_or(look, |due| due.min(look))
                }
                failed => {
                    match failed {
                        Ok(Err(error)) if failures == 0 => {
                            let error = error_chain(&error);
                            warn!(%error, "moving delayed messages failed; it is tried again");
                        }
                        _ => debug!("moving delayed messages failed again, or took too long"),
                    }
                    failures = failures.saturating_add(1);
                    FAILING.delay(failures)
                }
            };
            // Only a standby becomes the leader. One that leads already would not pause at all.
            let stands_by = matches!(*leader.borrow(), Leader::Another(_));
            tokio::select! {
                () = sleep(pause) => {}
                Ok(_) = leader.wait_for(|leader| matches!(leader, Leader::This)), if stands_by => {}
                () = shutdown.cancelled() => {}
            }
        }
    }

    /// One bounded batch, in a transaction of its own.
    ///
    /// # Errors
    /// PostgreSQL refused or went away: the batch was moved as a whole, or not at all.
    pub async fn run_once(&mut self) -> Result<Moved, RelayError> {
        let from = std::mem::take(&mut self.place);
        let (moved, place) = self.store.move_delayed(from).await.map_err(RelayError::store)?;
        // A round that is over begins anew: messages that others held may be free.
        self.place = place.filter(|_| moved.more).unwrap_or_default();
        if moved.messages > 0 {
            debug!(messages = moved.messages, "moved delayed messages into the log");
        }
        Ok(moved)
    }
}
