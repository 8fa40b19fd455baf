//! A stream of JetStream: it acknowledges before anything is safe, and can come back with less.

use crate::bits::{self, Bits};

/// A replay of a message has an id of its own: the message's number with this bit.
pub(crate) const REPLAY: u8 = 16;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Stream {
    /// The sendings that it has; the first one has the sequence 1.
    pub(crate) entries: Vec<u8>,
    /// The ids within the duplicate window.
    pub(crate) window: Bits,
    /// Up to here they are older than the outbox's retention time, and safe.
    pub(crate) old: u8,
}

impl Stream {
    /// Stores a sending, or recognises it: its sequence, and whether it is a duplicate. A
    /// duplicate has the sequence of its newest copy.
    pub(crate) fn store(&mut self, sending: u8) -> (u8, bool) {
        if bits::has(self.window, sending)
            && let Some(at) = self.entries.iter().rposition(|entry| *entry == sending)
        {
            return (sequence(at), true);
        }
        self.entries.push(sending);
        self.window = bits::with(self.window, sending);
        (sequence(self.entries.len() - 1), false)
    }

    /// The end is gone: it knows only the ids that are left, and gives the sequences out again.
    pub(crate) fn lose_end(&mut self, keeps: usize) {
        self.entries.truncate(keeps);
        self.window &= self.entries.iter().fold(0, |known, entry| bits::with(known, *entry));
    }

    pub(crate) fn last(&self) -> u8 {
        u8::try_from(self.entries.len()).expect("a few entries")
    }

    pub(crate) fn at(&self, sequence: u8) -> Option<u8> {
        self.entries.get(usize::from(sequence).checked_sub(1)?).copied()
    }
}

fn sequence(at: usize) -> u8 {
    u8::try_from(at + 1).expect("a few entries")
}
