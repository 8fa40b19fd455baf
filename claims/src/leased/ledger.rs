//! Which effects a run has begun, so that it cannot end as if nothing were open.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The effects of one run.
#[derive(Debug, Default)]
pub(super) struct Ledger(Mutex<BTreeMap<String, Entry>>);

/// How an effect of this run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    /// The effect was not begun, or is known not to have happened.
    Idle,
    /// A task has it in hand; `is_open`: it may have happened.
    Busy {
        is_open: bool,
    },
    /// It may have happened.
    Open,
    Settled,
}

/// An effect that a task has in hand; dropped before it is settled, it stays as it was last known.
#[derive(Debug)]
pub(super) struct StepGuard {
    ledger: Arc<Ledger>,
    step: String,
    /// Something may have been called for it in this run already.
    pub(super) was_open: bool,
}

impl Ledger {
    /// Takes an effect in hand; refuses one that is settled or that another task has in hand, since
    /// the second use would silently get the result of the first.
    pub(super) fn take(self: &Arc<Self>, step: &str) -> Result<StepGuard, &'static str> {
        let mut entries = self.entries();
        let entry = entries.entry(step.to_owned()).or_insert(Entry::Idle);
        let was_open = *entry == Entry::Open;
        *entry = match *entry {
            Entry::Idle => Entry::Busy { is_open: false },
            Entry::Open => Entry::Busy { is_open: true },
            Entry::Busy { .. } => {
                return Err("is under way already; each effect of a run needs a name of its own");
            }
            Entry::Settled => return Err("was done already; each effect of a run needs a name of its own"),
        };
        drop(entries);
        Ok(StepGuard { ledger: Arc::clone(self), step: step.to_owned(), was_open })
    }

    /// The effects that may have happened, for a reason or a log.
    pub(super) fn open(&self) -> Option<String> {
        let entries = self.entries();
        let open =
            entries.iter().filter(|(_, entry)| matches!(entry, Entry::Open | Entry::Busy { is_open: true }));
        let names: Vec<String> = open.map(|(step, _)| format!("\"{step}\"")).collect();
        (!names.is_empty()).then(|| names.join(", "))
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        // Every change is one assignment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StepGuard {
    /// Records that the effect may have happened from now on.
    pub(super) fn opened(&self) {
        self.set(Entry::Busy { is_open: true });
    }

    /// It is known, and remembered, how it ended.
    pub(super) fn settled(&self) {
        self.set(Entry::Settled);
    }

    /// It is known, and remembered, that it did not happen.
    pub(super) fn forgotten(&self) {
        self.set(Entry::Idle);
    }

    fn set(&self, entry: Entry) {
        self.ledger.entries().insert(self.step.clone(), entry);
    }
}

impl Drop for StepGuard {
    fn drop(&mut self) {
        if let Some(entry) = self.ledger.entries().get_mut(&self.step) {
            *entry = match *entry {
                Entry::Busy { is_open: true } => Entry::Open,
                Entry::Busy { is_open: false } => Entry::Idle,
                other => other,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_begun_and_dropped_stays_open() {
        let ledger = Arc::new(Ledger::default());
        let guard = ledger.take("charge").unwrap();
        assert_eq!(ledger.open(), None, "nothing was sent yet");
        assert!(ledger.take("charge").is_err(), "two at once");
        guard.opened();
        assert_eq!(ledger.open().as_deref(), Some("\"charge\""));
        drop(guard);
        assert_eq!(ledger.open().as_deref(), Some("\"charge\""));
        let again = ledger.take("charge").unwrap();
        drop(again);
        assert_eq!(ledger.open().as_deref(), Some("\"charge\""), "taken in hand, and no wiser");
        ledger.take("charge").unwrap().settled();
        assert_eq!(ledger.open(), None);
        assert!(ledger.take("charge").is_err(), "its result would be the first one's");
        ledger.take("mail").unwrap().forgotten();
        assert!(ledger.take("mail").is_ok(), "it did not happen: once more");
    }
}
