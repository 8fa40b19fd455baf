//! Whether the next messages are likely to be duplicates.
//!
//! Most messages are new, and a claim that expects a new key is faster (see `claim.sql`). When it
//! is wrong it costs a rolled back transaction and a line in PostgreSQL's log. So after each
//! duplicate the next thousand messages are claimed with the statement that expects either: when a
//! stream is delivered again, there is one such line, not one for each message.

use std::sync::atomic::{AtomicU32, Ordering};

const MESSAGES: u32 = 1_000;

/// How many of the next messages are expected to be duplicates.
#[derive(Debug, Default)]
pub(crate) struct DuplicateHint(AtomicU32);

impl DuplicateHint {
    /// A duplicate came in.
    pub(crate) fn note_duplicate(&self) {
        self.0.store(MESSAGES, Ordering::Relaxed);
    }

    /// Counts one message, and tells whether it may be a duplicate.
    pub(crate) fn expects_duplicate(&self) -> bool {
        // Read first: without duplicates nothing is written, and no cache line goes from core to
        // core.
        self.0.load(Ordering::Relaxed) > 0
            && self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duplicate_is_expected_for_a_thousand_messages() {
        let hint = DuplicateHint::default();
        assert!(!hint.expects_duplicate());
        for _ in 0..2 {
            hint.note_duplicate();
            assert_eq!((0..5_000).filter(|_| hint.expects_duplicate()).count(), 1_000);
        }
    }
}
