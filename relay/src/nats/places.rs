//! Which streams have acknowledged which subjects, and who answers for them; known as long as the
//! process lives, over all connections.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// So many subjects are remembered; then they are learnt anew.
const SUBJECTS_MAX: usize = 10_000;

/// What is remembered.
#[derive(Debug, Default)]
pub(crate) struct Places {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// By the name in the acknowledgement, with its domain, the name as receipts have it.
    streams: HashMap<Arc<str>, Arc<str>>,
    /// The stream that has acknowledged a subject last.
    subjects: HashMap<Box<str>, Arc<str>>,
}

impl Places {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name of a stream in receipts, once it was looked for.
    pub(super) fn found(&self, acknowledged: &str) -> Option<Arc<str>> {
        self.known().streams.get(acknowledged).cloned()
    }

    pub(super) fn note_stream(&self, acknowledged: &Arc<str>, name: &Arc<str>) {
        self.known().streams.insert(Arc::clone(acknowledged), Arc::clone(name));
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
