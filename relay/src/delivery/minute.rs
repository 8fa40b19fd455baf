//! Counts the messages that streams have stored since this relay last wrote a row of table
//! `history`.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::SystemTime,
};

use tokio::time::Instant;

/// Subjects that are counted each by itself; those that come later count together, under "".
const SUBJECTS_MAX: usize = 20;
/// Messages that are looked for in the inboxes a minute later.
const SAMPLED_MAX: usize = 100;

/// Counts until they are taken for the history.
#[derive(Debug)]
pub(crate) struct Minute(Mutex<Counts>);

/// Messages that a stream has stored, replays and duplicates left out.
#[derive(Debug)]
pub(crate) struct Counts {
    pub(crate) since: Instant,
    pub(crate) stored: u64,
    pub(crate) ages: Ages,
    pub(crate) subjects: HashMap<String, i64>,
    /// A sample without bias: keys, and when the messages were enqueued.
    pub(crate) sample: Vec<(String, SystemTime)>,
}

/// A message that a stream has stored.
pub(crate) struct Stored<'a> {
    pub(crate) key: &'a str,
    pub(crate) subject: &'a str,
    pub(crate) created_at: SystemTime,
    pub(crate) age_seconds: f64,
}

impl Minute {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Counts::new()))
    }

    /// Counts messages.
    pub(crate) fn note<'a>(&self, stored: impl Iterator<Item = Stored<'a>>) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        stored.for_each(|stored| counts.add(&stored));
    }

    /// Takes the counts, and begins anew.
    pub(crate) fn take(&self) -> Counts {
        std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), Counts::new())
    }

    /// Adds counts that could not be written.
    pub(crate) fn give_back(&self, old: Counts) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let new = std::mem::replace(&mut *counts, old);
        counts.stored += new.stored;
        counts.ages.merge(&new.ages);
        new.subjects.into_iter().for_each(|(subject, messages)| counts.count(&subject, messages));
        counts.sample.extend(new.sample);
        counts.sample.truncate(SAMPLED_MAX);
    }
}

impl Counts {
    fn new() -> Self {
        Self {
            since: Instant::now(),
            stored: 0,
            ages: Ages::default(),
            subjects: HashMap::new(),
            sample: Vec::new(),
        }
    }

    fn add(&mut self, stored: &Stored<'_>) {
        self.stored += 1;
        self.ages.add(stored.age_seconds);
        self.count(stored.subject, 1);
        let place = match self.sample.len() {
            so_far if so_far < SAMPLED_MAX => so_far,
            _ => usize::try_from(fastrand::u64(0..self.stored)).unwrap_or(usize::MAX),
        };
        let sampled = || (stored.key.to_owned(), stored.created_at);
        match self.sample.get_mut(place) {
            Some(other) => *other = sampled(),
            None if place < SAMPLED_MAX => self.sample.push(sampled()),
            None => {}
        }
    }

    fn count(&mut self, subject: &str, messages: i64) {
        if let Some(count) = self.subjects.get_mut(subject) {
            *count += messages;
            return;
        }
        let name = if self.subjects.len() < SUBJECTS_MAX { subject } else { "" };
        *self.subjects.entry(name.to_owned()).or_default() += messages;
    }
}

/// How old messages were, in buckets that are an eighth of their time wide.
#[derive(Debug)]
pub(crate) struct Ages([u32; BUCKETS]);

/// The number of buckets in each power of two, as a power of two.
const PART_BITS: u32 = 3;
/// Microseconds to 2^40, which are twelve days.
const BUCKETS: usize = (40 - PART_BITS as usize + 1) << PART_BITS;

impl Default for Ages {
    fn default() -> Self {
        Self([0; BUCKETS])
    }
}

impl Ages {
    fn add(&mut self, seconds: f64) {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
        let microseconds = (seconds * 1e6) as u64;
        let count = &mut self.0[bucket(microseconds)];
        *count = count.saturating_add(1);
    }

    fn merge(&mut self, other: &Self) {
        for (count, more) in self.0.iter_mut().zip(other.0) {
            *count = count.saturating_add(more);
        }
    }

    /// The seconds that this part of the messages took at most, up to the width of a bucket too
    /// many; `None` without messages.
    pub(crate) fn quantile(&self, part: f64) -> Option<f64> {
        let total: f64 = self.0.iter().map(|count| f64::from(*count)).sum();
        let (mut passed, wanted) = (0.0, (total * part).ceil());
        let found = self.0.iter().position(|count| {
            passed += f64::from(*count);
            passed >= wanted && wanted > 0.0
        })?;
        Some(end(found) / 1e6)
    }
}

fn bucket(microseconds: u64) -> usize {
    let power = microseconds.max(1).ilog2().max(PART_BITS) - PART_BITS;
    let place = (u64::from(power) << PART_BITS) + (microseconds >> power);
    usize::try_from(place).map_or(BUCKETS - 1, |place| place.min(BUCKETS - 1))
}

/// The end of a bucket in microseconds.
fn end(bucket: usize) -> f64 {
    let power = (bucket >> PART_BITS).saturating_sub(1);
    #[expect(clippy::cast_precision_loss, reason = "below 2^40")]
    let end = ((bucket - (power << PART_BITS) + 1) << power) as f64;
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_lies_in_a_narrow_bucket() {
        let mut before = 0;
        for microseconds in (0..4_000).chain((12..40).map(|power| (1 << power) + 5)) {
            let found = bucket(microseconds);
            assert!(found >= before, "{microseconds}");
            before = found;
            #[expect(clippy::cast_precision_loss, reason = "small")]
            let microseconds = microseconds as f64;
            assert!(end(found) > microseconds && end(found) <= microseconds * 1.125 + 1.0, "{microseconds}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_subjects_and_samples_are_bounded_and_come_back() {
        let minute = Minute::new();
        assert_eq!(minute.take().ages.quantile(0.99), None);
        let names: Vec<String> = (0..1_000).map(|number| format!("{}", number % 50)).collect();
        let stored = |(number, name): (u32, &'static str)| Stored {
            key: name,
            subject: name,
            created_at: SystemTime::UNIX_EPOCH,
            age_seconds: f64::from(number) / 1e3,
        };
        let names: Vec<&'static str> = names.into_iter().map(|name| &*name.leak()).collect();
        minute.note((1..=500).zip(names[..500].iter().copied()).map(stored));
        let old = minute.take();
        minute.note((501..=1_000).zip(names[500..].iter().copied()).map(stored));
        minute.give_back(old);
        let counts = minute.take();
        assert_eq!((counts.stored, counts.sample.len()), (1_000, SAMPLED_MAX));
        assert_eq!(counts.subjects.len(), SUBJECTS_MAX + 1);
        assert_eq!((counts.subjects["3"], counts.subjects[""]), (20, 600));
        let quantiles = [0.5, 0.99, 1.0].map(|part| counts.ages.quantile(part).unwrap());
        for (quantile, truth) in quantiles.into_iter().zip([0.5, 0.99, 1.0]) {
            assert!((truth..truth * 1.13).contains(&quantile), "{quantiles:?}");
        }
    }
}
