//! How much of messages a relay holds in memory, over all lanes of a pass and all workers.
//!
//! A lane is read up to its limit and one message more, however large that is. So the lanes of a
//! pass have a limit together, and the workers of a relay share a budget. A message that finds no
//! room is left for a later pass, as if it had not been read; its payload is not even transferred,
//! see `Session::read`.
//!
//! A pass may be over while the client of NATS still holds some of its payloads: they wait behind a
//! slow line. So the share of a pass comes back with the last copy of its payloads.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::Tuning;

/// Payloads that all workers hold at most: four of the largest that `enqueue` takes, so that each
/// of the four workers of the defaults may hold one. A relay stays below 96 MiB: it uses some 25
/// for itself, and some 24 while the streams are checked (`nats/stored_id.rs`).
const ALL: usize = 32 * 1024 * 1024;
/// The share that is taken of it at a time.
const UNIT: usize = 256 * 1024;

/// The client of NATS copies shorter payloads.
const KEPT_BY_CLIENT: usize = 4096;

/// One for all workers of a relay.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    all: Arc<Semaphore>,
    pass_max: usize,
}

/// The share of a pass; it is given back when the share and all payloads that borrow it are
/// dropped.
#[derive(Debug)]
pub(super) struct Share {
    budget: Budget,
    taken: Vec<OwnedSemaphorePermit>,
    lent: Option<Arc<[OwnedSemaphorePermit]>>,
    held: usize,
    since_begin: usize,
}

/// A payload, and the share that it takes up.
struct Lent {
    payload: Bytes,
    _share: Arc<[OwnedSemaphorePermit]>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.payload
    }
}

impl Budget {
    pub(crate) fn new(tuning: &Tuning) -> Self {
        let bytes = usize::try_from(tuning.read.bytes_max.saturating_mul(tuning.lanes_max)).unwrap_or(ALL);
        // Twice, since each lane may bring a message more: ordinary ones are not to be left for the
        // next pass.
        Self { all: Arc::new(Semaphore::new(ALL / UNIT)), pass_max: bytes.saturating_mul(2).min(ALL / 2) }
    }

    /// For a pass.
    pub(super) fn share(&self) -> Share {
        Share { budget: self.clone(), taken: Vec::new(), lent: None, held: 0, since_begin: 0 }
    }
}

impl Share {
    /// From here on one message is admitted again, however much the pass holds.
    pub(super) fn begin(&mut self) {
        self.since_begin = 0;
    }

    /// Whether the pass may hold a payload of so many bytes as well.
    pub(super) fn admit(&mut self, bytes: usize) -> bool {
        if self.since_begin > 0 && self.since_begin + bytes > self.budget.pass_max {
            return false;
        }
        let units = |bytes: usize| bytes.div_ceil(UNIT);
        let needed = units(self.held + bytes) - units(self.held);
        if needed > 0 {
            let needed = u32::try_from(needed).unwrap_or(u32::MAX);
            let Ok(taken) = Arc::clone(&self.budget.all).try_acquire_many_owned(needed) else { return false };
            self.taken.push(taken);
        }
        self.held += bytes;
        // Also an empty one counts as one.
        self.since_begin += bytes.max(1);
        true
    }

    /// Admits nothing more: from here on the payloads hold the share as well.
    pub(super) fn lend<'a>(&mut self, payloads: impl Iterator<Item = &'a mut Bytes>) {
        let lent: Arc<[_]> = std::mem::take(&mut self.taken).into();
        for payload in payloads.filter(|payload| payload.len() >= KEPT_BY_CLIENT) {
            let kept = Lent { payload: std::mem::take(payload), _share: Arc::clone(&lent) };
            *payload = Bytes::from_owner(kept);
        }
        self.lent = Some(lent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: usize = 8 * 1024 * 1024;

    fn budget(lanes_max: i64, bytes_max: i64) -> Budget {
        let text = |text: &str| text.to_owned();
        let values =
            [("database-url", text("postgres://localhost/x")), ("nats-url", text("nats://localhost"))];
        let mut tuning = crate::Config::from_values(&values.into()).unwrap().tuning;
        (tuning.lanes_max, tuning.read.bytes_max) = (lanes_max, bytes_max);
        Budget::new(&tuning)
    }

    #[test]
    fn a_pass_holds_many_small_messages_or_one_large_one() {
        let budget = budget(4, 524_288);
        let mut share = budget.share();
        assert!((0..4_096).all(|_| share.admit(1_024)), "4 MiB");
        assert!(!share.admit(1_024));
        share.begin();
        assert!(share.admit(MESSAGE) && !share.admit(1));
        let mut empty = budget.share();
        assert!(empty.admit(0) && !empty.admit(MESSAGE));
    }

    #[test]
    fn what_all_workers_hold_is_bounded_and_comes_back() {
        let budget = budget(256, i64::MAX);
        let mut shares: Vec<Share> = (0..4).map(|_| budget.share()).collect();
        assert!(shares.iter_mut().all(|share| share.admit(MESSAGE)));
        assert!(!budget.share().admit(1));
        shares.pop();
        assert!(budget.share().admit(MESSAGE));
    }

    #[test]
    fn a_share_comes_back_with_the_last_copy_of_a_payload() {
        let budget = budget(256, i64::MAX);
        let mut share = budget.share();
        let mut payloads = vec![Bytes::from(vec![1; ALL / 2]), Bytes::from_static(b"short")];
        assert!(share.admit(ALL) && !budget.share().admit(1));
        share.lend(payloads.iter_mut());
        let client = payloads.clone();
        drop((share, payloads));
        assert!(!budget.share().admit(1), "the client still has it");
        assert!(client[0].len() == ALL / 2 && client[0].iter().all(|byte| *byte == 1));
        drop(client);
        assert!(budget.share().admit(ALL));
    }
}
