//! Which streams have acknowledged which subjects, which JetStream knows each stream, and which
//! streams are in doubt; remembered as long as the process lives, over all connections.
//!
//! A stream that was out of reach may come back with less than it had acknowledged, while the
//! connection stays: the stream of a hub, seen from a leaf node, or one of another server in a
//! cluster. Newer messages would then be stored before the lost ones. So the stream is in doubt
//! from its first sign of absence, and gets no message until it has been checked
//! (`pass/checks.rs`).

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use crate::delivery::{Birth, covers, is_unseen, split};

/// The most subjects that are remembered; then they are learnt anew.
const SUBJECTS_MAX: usize = 10_000;
/// A stream that no JetStream seemed to know is looked for again after this time: its hub may have
/// been cut off right after an acknowledgement, and would never be checked for losses.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// A stream that acknowledges, while questions about it get no answer, is waited for until this
/// time is over. After that its messages are settled all the same.
const FIND_MAX: Duration = Duration::from_secs(10);

/// The streams and subjects that a relay remembers.
#[derive(Debug, Default)]
pub(crate) struct Places {
    known: Mutex<Known>,
    /// A stream is in doubt.
    pub(crate) doubting: Notify,
}

#[derive(Debug, Default)]
struct Known {
    /// By the name in the acknowledgement, with its domain, the name as receipts have it, and when
    /// it was found.
    streams: HashMap<Arc<str>, (Arc<str>, Instant)>,
    /// Since when streams are looked for in vain, for want of an answer.
    sought: HashMap<Arc<str>, Instant>,
    /// The stream that has acknowledged a subject last.
    subjects: HashMap<Box<str>, Arc<str>>,
    /// Streams that have acknowledged something for the first time, by their names in receipts: the
    /// database is to know which ones they were, should they be made anew.
    births: HashMap<Arc<str>, Birth>,
    /// Whether a task checks streams. Without one, no doubt would end, so there is none.
    is_checked: bool,
    doubted: HashMap<Arc<str>, Doubt>,
}

/// A stream is in doubt.
#[derive(Debug, Default)]
struct Doubt {
    /// The stream's, as far as the database has them.
    subjects: HashSet<String>,
    /// How often the stream was out of reach since it is in doubt.
    absences: u64,
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
        let mut known = self.known();
        known.sought.remove(acknowledged);
        let before = known.streams.insert(Arc::clone(acknowledged), found);
        before.is_none_or(|(before, _)| before != *name)
    }

    /// A stream was found.
    pub(super) fn note_birth(&self, name: &Arc<str>, birth: Birth) {
        self.known().births.insert(Arc::clone(name), birth);
    }

    /// The streams that were found since the last call.
    pub(crate) fn take_births(&self) -> HashMap<Arc<str>, Birth> {
        std::mem::take(&mut self.known().births)
    }

    /// There was no answer about a stream: whether to wait for one.
    pub(super) fn may_be_found(&self, acknowledged: &Arc<str>) -> bool {
        let mut known = self.known();
        known.sought.entry(Arc::clone(acknowledged)).or_insert_with(Instant::now).elapsed() < FIND_MAX
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

    /// From now on a task checks the streams that are in doubt.
    pub(crate) fn are_checked(&self) {
        self.known().is_checked = true;
    }

    /// A stream was out of reach. A relay that has just started knows its subjects only from the
    /// database.
    pub(crate) fn doubt(&self, name: &str, patterns: Vec<String>) {
        let mut known = self.known();
        if !known.is_checked || is_unseen(name) {
            return;
        }
        if !known.doubted.contains_key(name) {
            tracing::debug!(stream = name, "out of reach; it is checked when it is back");
            self.doubting.notify_one();
        }
        // A worker knows only its own subject, and takes none of the others away.
        let doubt = known.doubted.entry(name.into()).or_default();
        doubt.subjects.extend(patterns);
        doubt.absences += 1;
    }

    /// The stream that has acknowledged this subject was out of reach.
    pub(super) fn doubt_stream_of(&self, subject: &str) {
        if let Some(name) = self.of(subject) {
            self.doubt(&name, Vec::new());
        }
    }

    /// A stream cannot be checked.
    pub(crate) fn trust(&self, name: &str) {
        self.known().doubted.remove(name);
    }

    /// A stream was checked. When it was out of reach once more meanwhile, it stays in doubt.
    pub(crate) fn trust_since(&self, doubted: &HashMap<Arc<str>, u64>, name: &str) {
        let mut known = self.known();
        if known.doubted.get(name).map(|doubt| doubt.absences) == doubted.get(name).copied() {
            known.doubted.remove(name);
        }
    }

    pub(crate) fn trust_all(&self) {
        self.known().doubted.clear();
    }

    /// The streams in doubt, and how often each was out of reach.
    pub(crate) fn doubted(&self) -> HashMap<Arc<str>, u64> {
        let known = self.known();
        known.doubted.iter().map(|(name, doubt)| (Arc::clone(name), doubt.absences)).collect()
    }

    pub(crate) fn are_in_doubt(&self) -> bool {
        !self.known().doubted.is_empty()
    }

    /// The stream of a subject, if it is in doubt.
    pub(super) fn in_doubt(&self, subject: &str) -> Option<String> {
        let known = self.known();
        if known.doubted.is_empty() {
            return None;
        }
        let takes = |doubt: &Doubt| doubt.subjects.iter().any(|pattern| covers(pattern, subject));
        let name = match known.subjects.get(subject) {
            Some(name) => known.doubted.contains_key(name).then_some(name),
            None => known.doubted.iter().find(|(_, doubt)| takes(doubt)).map(|(name, _)| name),
        };
        name.map(|name| split(name).1.to_owned())
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

    #[tokio::test(start_paused = true)]
    async fn a_stream_of_which_nobody_speaks_is_waited_for_a_while() {
        let (places, name): (_, Arc<str>) = (Places::default(), "ORDERS".into());
        assert!(places.may_be_found(&name));
        tokio::time::advance(FIND_MAX).await;
        assert!(!places.may_be_found(&name));
        places.note_stream(&name, &name);
        assert!(places.may_be_found(&name), "the time counts anew");
    }

    #[test]
    fn a_stream_is_in_doubt_from_its_first_absence_to_its_check() {
        let places = Places::default();
        let (hub, local): (Arc<str>, Arc<str>) = ("hub.ORDERS".into(), "LOCAL".into());
        places.note_subjects([("orders.placed", &hub), ("local.x", &local)].into_iter());
        places.doubt_stream_of("orders.placed");
        assert!(!places.are_in_doubt(), "nobody would check it");
        places.are_checked();
        let before = places.doubted();
        places.doubt_stream_of("orders.placed");
        places.trust_since(&before, "hub.ORDERS");
        assert_eq!(places.in_doubt("orders.placed").as_deref(), Some("ORDERS"));
        assert_eq!(places.in_doubt("orders.paid"), None, "nothing shows that it is of that stream");
        places.doubt("hub.ORDERS", vec!["orders.>".to_owned(), "local.>".to_owned()]);
        places.doubt_stream_of("orders.placed");
        assert_eq!(places.in_doubt("orders.paid").as_deref(), Some("ORDERS"));
        assert_eq!(places.in_doubt("local.x"), None, "another stream has acknowledged it");
        let before = places.doubted();
        places.doubt_stream_of("orders.placed");
        places.trust_since(&before, "hub.ORDERS");
        assert!(places.are_in_doubt(), "it was away since the check began");
        places.trust_since(&places.doubted(), "hub.ORDERS");
        assert!(!places.are_in_doubt());
    }
}
