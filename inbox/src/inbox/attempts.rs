//! Which runs are attempts, and who runs alone.
//!
//! ```text
//! delivered first ──────────────────────▶ run ─▶ failed? recorded
//! delivered again ─▶ recorded as begun ─▶ run ─▶ failed? recorded
//!        │
//!        └─ a run before it left no trace ─▶ alone among its like, recorded as begun ─▶ run
//! ```
//!
//! A run is an attempt when it failed, or when it began alone and left no trace: it ended its
//! process. What waits, is given back, or is delivered again and again meanwhile is none, whatever
//! JetStream counts. The first run without a trace is none either: many run at once, and all of
//! them die with the one that kills. So those that were at work then run one at a time the next
//! time, and only the one that kills is counted.

use std::{ops::Deref, sync::Arc, time::Duration};

use oncebox_claims::identity::Identity;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use tracing::{debug, warn};

use super::{
    Inbox, Refused,
    chain::{Seat, Turn},
    ending::decode,
};
use crate::{Error, Handler, Received, Verdict};

const NO_TRACE: &str = "delivery limit reached, and the last attempt left no trace: did it end the process?";
/// How long a worker waits until it may run a message alone, before it turns to others.
const PATIENCE: Duration = Duration::from_millis(250);

/// Those who may be to blame for a process that died run one at a time.
#[derive(Clone, Debug)]
pub(super) struct Suspects(Arc<Semaphore>);

impl Default for Suspects {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }
}

/// Held while one of them runs.
pub(crate) type Alone = OwnedSemaphorePermit;

/// Whether a message that was delivered before may be run.
enum Begun {
    Run(Option<Alone>),
    /// Another that has to be alone is at work.
    Busy,
    Exhausted,
}

impl Inbox {
    /// The right to run a message alone, unless another has it for longer than is worth waiting.
    pub(crate) async fn alone(&self) -> Option<Alone> {
        timeout(PATIENCE, Arc::clone(&self.suspects.0).acquire_owned()).await.ok()?.ok()
    }

    async fn begin(&self, identity: &Identity, received: &Received) -> Result<Begun, Error> {
        let (scope, limit) = (&self.settings.scope, self.settings.retries.deliveries_max);
        let mut alone = None;
        loop {
            let begun = self.records.begin_run(scope, identity, received, alone.is_some()).await?;
            // Ended, or in flight: the claim will tell which.
            let Some(tried) = begun else { return Ok(Begun::Run(alone)) };
            if tried.attempts() >= limit {
                return Ok(Begun::Exhausted);
            }
            if tried.untraced == 0 || alone.is_some() {
                received.begun.set(true);
                if tried.untraced > 0 {
                    let (key, untraced) = (identity.key.as_str(), tried.untraced);
                    warn!(
                        scope,
                        key, untraced, "runs alone: a run of it left no trace, did it end the process?"
                    );
                }
                return Ok(Begun::Run(alone));
            }
            alone = self.alone().await;
            if alone.is_none() {
                return Ok(Begun::Busy);
            }
        }
    }

    /// A message that cannot be run at once: it was delivered before, and is recorded first, or
    /// never will be.
    pub(super) async fn examine<H: Handler, T: Deref<Target = Received>>(
        &self,
        refused: Refused<T>,
    ) -> Result<Turn<T, H::Message>, (T, Result<Verdict<H::Reply>, Error>)> {
        let (received, identity, reason) = match refused {
            Refused::Never { received, identity, reason } => (received, identity, reason),
            Refused::Again { received, identity, round } => match self.begin(&identity, &received).await {
                Ok(Begun::Run(alone)) => match decode(received.payload()) {
                    Ok(message) => {
                        let seat = Seat { _alone: alone, ..Seat::new(received, identity, round) };
                        return Ok(Turn { seat, message });
                    }
                    Err(undecodable) => (received, Some(identity), undecodable),
                },
                Ok(Begun::Exhausted) => (received, Some(identity), NO_TRACE.to_owned()),
                Ok(Begun::Busy) => {
                    let (scope, key) = (&self.settings.scope, identity.key.as_str());
                    debug!(scope, key, "waits until it may run alone");
                    return Err((received, Ok(Verdict::InFlight)));
                }
                Err(error) => return Err((received, Err(error))),
            },
        };
        let result = self.bury(identity.as_ref(), &received, reason).await;
        Err((received, result))
    }

    /// Records that an attempt has failed; how many have, this one included.
    pub(super) async fn failed(&self, identity: &Identity, received: &Received) -> Result<u64, Error> {
        let failures = self.records.attempt_failed(&self.settings.scope, identity, received).await?;
        received.begun.set(false);
        Ok(failures)
    }
}
