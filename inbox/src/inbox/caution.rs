//! Whether a message may be a duplicate, as far as that can be known before its key is claimed.
//!
//! Most are new, and a claim that only needs to be right about new ones is faster; see `claim.sql`. One that is wrong
//! costs a rolled back transaction and a line in PostgreSQL's log, so after each duplicate the next thousand messages
//! are claimed with caution: when a stream is delivered anew, there is one such line, not one a message.

use std::sync::atomic::{AtomicU32, Ordering};

const MESSAGES: u32 = 1_000;

/// How many messages are still to be claimed with caution.
#[derive(Debug, Default)]
pub(super) struct Caution(AtomicU32);

impl Caution {
    /// A duplicate came in.
    pub(super) fn raise(&self) {
        self.0.store(MESSAGES, Ordering::Relaxed);
    }

    /// Counts one message, and tells whether it is to be claimed with caution.
    pub(super) fn is_advised(&self) -> bool {
        // Read first: without duplicates nothing is written, and no cache line goes from core to core.
        self.0.load(Ordering::Relaxed) > 0
            && self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duplicate_advises_caution_for_a_thousand_messages() {
        let caution = Caution::default();
        assert!(!caution.is_advised());
        for _ in 0..2 {
            caution.raise();
            assert_eq!((0..5_000).filter(|_| caution.is_advised()).count(), 1_000);
        }
    }
}
