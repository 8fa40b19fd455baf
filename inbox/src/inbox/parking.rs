//! Not now, says the handler, and it is not the message's fault.
//!
//! ```text
//! handler ──park──▶ ROLLBACK ─▶ note the delivery in `inbox_park` ─┬─▶ again after the pause
//!                                                                └─ parked for too long ─▶ dead letter
//! ```
//!
//! The row is committed before JetStream hears of anything. A process that dies in between leaves a delivery that is noted
//! already; one that dies before, one that counts as an attempt, as every delivery without a trace does.
//! Only a message that failed, or is over the delivery limit, is looked up: one that is handled pays nothing.

use std::{ops::Deref, time::Duration};

use tracing::{debug, info};

use super::{
    Inbox, Refused,
    chain::{Seat, Turn},
    ending::decode,
};
use crate::{Error, Handler, Received, Verdict, counts::Counters, identity::Identity, store::Parked};

/// The shortest pause, so that nothing spins.
const SHORTEST: Duration = Duration::from_millis(100);
/// The longest, so that what is back is noticed.
const LONGEST: Duration = Duration::from_secs(3600);

impl Inbox {
    /// Which attempt this delivery is, counted from 1: those that were parked do not count.
    pub(crate) async fn attempt(&self, identity: &Identity, received: &Received) -> Result<u64, Error> {
        let delivery = received.delivery_count();
        if delivery <= 1 {
            return Ok(delivery);
        }
        let parked = self.store.parked(&self.settings.scope, identity, received).await?;
        Ok(parked.map_or(delivery, |parked: Parked| parked.attempt(delivery)))
    }

    /// Parks a message: the pause, or why it is to be given up instead.
    pub(crate) async fn park(
        &self,
        identity: &Identity,
        received: &Received,
        after: Duration,
        reason: &str,
    ) -> Result<Result<Duration, String>, Error> {
        let (scope, key) = (&self.settings.scope, identity.key.as_str());
        let after = after.clamp(SHORTEST, LONGEST);
        let before = self.attempt(identity, received).await?.saturating_sub(1);
        let (parks, since) = self.store.park(scope, identity, received, before, after, reason).await?;
        if since >= self.settings.limits.park_max {
            return Ok(Err(format!("parked for too long, {parks} times in {since:?}: {reason}")));
        }
        Counters::add(&self.counters.parked);
        let after_seconds = after.as_secs_f64();
        if parks == 1 {
            info!(scope, key, after_seconds, "parked: {reason}");
        } else {
            debug!(scope, key, after_seconds, parks, "parked again: {reason}");
        }
        Ok(Ok(after))
    }

    /// A message that is not tried: unless it is only parks that have brought it over the delivery limit, it is given up.
    pub(super) async fn excuse<H: Handler, T: Deref<Target = Received>>(
        &self,
        refused: Refused<T>,
    ) -> Result<Turn<T, H::Message>, (T, Result<Verdict<H::Reply>, Error>)> {
        let Refused { received, identity, reason, round, is_over_limit } = refused;
        let excused = match &identity {
            Some(identity) if is_over_limit => self.is_excused(identity, &received).await,
            _ => Ok(false),
        };
        let (identity, reason) = match (excused, identity) {
            (Ok(true), Some(identity)) => match decode(received.payload()) {
                Ok(message) => return Ok(Turn { seat: Seat::new(received, identity, round), message }),
                Err(undecodable) => (Some(identity), undecodable),
            },
            (Ok(_), identity) => (identity, reason),
            (Err(error), _) => return Err((received, Err(error))),
        };
        let result = self.bury(identity.as_ref(), &received, reason).await;
        Err((received, result))
    }

    /// Whether it is only parks that have brought a message over the delivery limit.
    pub(super) async fn is_excused(&self, identity: &Identity, received: &Received) -> Result<bool, Error> {
        Ok(self.attempt(identity, received).await? <= self.settings.limits.deliveries_max)
    }
}
