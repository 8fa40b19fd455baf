//! How much of messages a relay holds in memory, over all lanes of a pass and all workers.
//!
//! A lane is read up to its limit and one message more, however large that is. So the lanes of a
//! pass have a limit together, and the workers of a relay share a budget. A message that finds no
//! room is left for a later pass, as if it had not been read; its payload is not even transferred,
//! see `Session::read`.
//!
//! A pass may be over while the client of NATS still holds some of its payloads: they wait for a
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

/// Payloads that all relays of a process hold at most, when it serves several databases, beside the
/// reserve of each.
const COMMON: usize = 64 * 1024 * 1024;
/// The reserve of each of these relays: even if the others hold everything else, it goes on with
/// small messages.
const RESERVE: usize = 1024 * 1024;
/// A relay takes no more than this part of all that it leaves to others.
const SHARE: usize = 3;

/// The budget that the relays of a process share. One whose NATS is slow takes a quarter of it, a
/// second one a quarter of the rest, and so on.
#[derive(Clone, Debug)]
pub(crate) struct Common(Arc<Semaphore>);

/// The part of one of these relays.
#[derive(Clone, Debug)]
struct Part {
    reserve: Arc<Semaphore>,
    /// As many as the common budget has, less those that this relay has taken of it.
    untaken: Arc<Semaphore>,
}

/// One for all workers of a relay.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    all: Arc<Semaphore>,
    part: Option<Part>,
    pass_max: usize,
}

/// A part of a budget, and the permit that marks it as taken by this relay.
type Taken = (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>);

/// The share of a pass; it is given back when the share and all payloads that borrow it are
/// dropped.
#[derive(Debug)]
pub(super) struct Share {
    budget: Budget,
    taken: Vec<Taken>,
    lent: Option<Arc<[Taken]>>,
    held: usize,
    since_begin: usize,
}

/// A payload, and the share that it takes up.
struct Lent {
    payload: Bytes,
    _share: Arc<[Taken]>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.payload
    }
}

impl Common {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(COMMON / UNIT)))
    }

    /// The budget of one of the relays.
    pub(crate) fn budget(&self, tuning: &Tuning) -> Budget {
        let semaphore = |bytes: usize| Arc::new(Semaphore::new(bytes / UNIT));
        let part = Some(Part { reserve: semaphore(RESERVE), untaken: semaphore(COMMON) });
        Budget { all: Arc::clone(&self.0), part, ..Budget::new(tuning) }
    }
}

impl Budget {
    pub(crate) fn new(tuning: &Tuning) -> Self {
        let bytes = usize::try_from(tuning.read.bytes_max.saturating_mul(tuning.lanes_max)).unwrap_or(ALL);
        // Twice, since each lane may bring a message more: ordinary ones are not to be left for the
        // next pass.
        let (all, part) = (Arc::new(Semaphore::new(ALL / UNIT)), None);
        Self { all, part, pass_max: bytes.saturating_mul(2).min(ALL / 2) }
    }

    fn take(&self, units: u32) -> Option<Taken> {
        let of = |semaphore: &Arc<Semaphore>| Arc::clone(semaphore).try_acquire_many_owned(units).ok();
        let Some(Part { reserve, untaken }) = &self.part else { return Some((of(&self.all)?, None)) };
        if let Some(reserved) = of(reserve) {
            return Some((reserved, None));
        }
        let (mark, taken) = (of(untaken)?, of(&self.all)?);
        let held = COMMON / UNIT - untaken.available_permits();
        // A lone message may take all that is there, however large it is.
        let is_first = held == units as usize;
        (is_first || held * SHARE <= self.all.available_permits()).then_some((taken, Some(mark)))
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

    /// Whether the pass may hold a payload of `bytes` as well.
    pub(super) fn admit(&mut self, bytes: usize) -> bool {
        if self.since_begin > 0 && self.since_begin + bytes > self.budget.pass_max {
            return false;
        }
        let units = |bytes: usize| bytes.div_ceil(UNIT);
        let needed = units(self.held + bytes) - units(self.held);
        if needed > 0 {
            let needed = u32::try_from(needed).unwrap_or(u32::MAX);
            let Some(taken) = self.budget.take(needed) else { return false };
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
        Budget::new(&tuning(lanes_max, bytes_max))
    }

    fn tuning(lanes_max: i64, bytes_max: i64) -> Tuning {
        let text = |text: &str| text.to_owned();
        let values =
            [("database-url", text("postgres://localhost/x")), ("nats-url", text("nats://localhost"))];
        let mut tuning = crate::Config::from_values(&values.into()).unwrap().tuning;
        (tuning.lanes_max, tuning.read.bytes_max) = (lanes_max, bytes_max);
        tuning
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
    fn relays_that_hold_all_they_may_leave_room_for_others() {
        let (common, tuning) = (Common::new(), tuning(256, i64::MAX));
        let hang = || {
            let mut share = common.budget(&tuning).share();
            while share.admit(UNIT) {
                share.begin();
            }
            share
        };
        let mut hanging: Vec<Share> = (0..3).map(|_| hang()).collect();
        let held: Vec<usize> = hanging.iter().map(|share| share.held / 1024 / 1024).collect();
        assert_eq!(held, [17, 13, 10], "the reserve, and a quarter of all that was left");
        assert!(common.budget(&tuning).share().admit(MESSAGE), "a large one of another relay");
        hanging.extend((0..40).map(|_| hang()));
        let mut other = common.budget(&tuning).share();
        assert!(
            (0..4).all(|_| {
                other.begin();
                other.admit(UNIT)
            }),
            "all the others hang, and it goes on"
        );
        drop((hanging, other));
        assert!(common.budget(&tuning).share().admit(COMMON), "all has come back");
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
