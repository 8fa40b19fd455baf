//! Which streams have acknowledged which subjects, and which JetStream knows each stream;
//! remembered as long as the process lives, over all connections.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::delivery::place::is_unseen;

/// So many subjects are remembered; then they are learnt anew.
const SUBJECTS_MAX: usize = 10_000;
/// A stream that no JetStream seemed to know is looked for again after this time: its hub may have
/// been cut off right behind an acknowledgement, and would never be checked for losses.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// The streams and subjects that a relay remembers.
#[derive(Debug, Default)]
pub(crate) struct Places {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// By the name in the acknowledgement, with its domain, the name as receipts have it, and when
    /// it was found.
    streams: HashMap<Arc<str>, (Arc<str>, Instant)>,
    /// The stream that has acknowledged a subject last.
    subjects: HashMap<Box<str>, Arc<str>>,
}

impl Places {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name of a stream in receipts, once it was looked for.
    pub(super) fn found(&self, acknowledged: &str) -> Option<Arc<str>> {
        let known = self.known();
        let (name, found_at) = known.streams.get(acknowledged)?;
        let is_certain = !is_unseen(name) || found_at.elapsed() < LOOK_AGAIN;
        is_certain.then(|| Arc::clone(name))
    }

    /// Notes the name; whether it is another one than before.
    pub(super) fn note_stream(&self, acknowledged: &Arc<str>, name: &Arc<str>) -> bool {
        let found = (Arc::clone(name), Instant::now());
        let before = self.known().streams.insert(Arc::clone(acknowledged), found);
        before.is_none_or(|(before, _)| before != *name)
    }

    /// Notes subjects, each with the stream that has acknowledged it.
    pub(super) fn note_subjects<'a>(&self, acknowledged: impl Iterator<Item = (&'a str, &'a Arc<str>)>) {
        let mut known = self.known();
        for (subject, stream) in acknowledged {
            if known.subjects.get(subject).is_some_and(|of| of == stream) {
                continue;
            }
            if known.subjects.len() >= SUBJECTS_MAX {
                known.subjects.clear();
            }
            known.subjects.insert(subject.into(), Arc::clone(stream));
        }
    }

    /// The stream that has acknowledged a subject.
    pub(super) fn of(&self, subject: &str) -> Option<Arc<str>> {
        self.known().subjects.get(subject).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::place::unseen;

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_nobody_knew_is_looked_for_again_and_one_that_was_found_is_not() {
        let places = Places::default();
        let (acknowledged, nobody): (Arc<str>, Arc<str>) = ("hub.ORDERS".into(), unseen("hub.ORDERS").into());
        assert!(places.note_stream(&acknowledged, &nobody));
        assert_eq!(places.found("hub.ORDERS"), Some(Arc::clone(&nobody)));
        tokio::time::advance(LOOK_AGAIN).await;
        assert_eq!(places.found("hub.ORDERS"), None);
        assert!(!places.note_stream(&acknowledged, &nobody), "which is said once");
        assert!(places.note_stream(&acknowledged, &acknowledged));
        tokio::time::advance(LOOK_AGAIN * 100).await;
        assert_eq!(places.found("hub.ORDERS"), Some(acknowledged));
    }
}
