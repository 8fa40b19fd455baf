//! The measurements since the sample before.

use std::{fmt, time::Duration};

const MIB: f64 = 1_048_576.0;

#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    /// Since the start.
    pub(crate) at: Duration,
    /// Since the start.
    pub(crate) committed: u64,
    /// Since the start.
    pub(crate) delivered: u64,
    /// Deliveries a second.
    pub(crate) rate: f64,
    /// Of each relay, in MiB.
    pub(crate) relays: Vec<f64>,
    /// MiB.
    pub(crate) nats: f64,
    /// MiB on the disk.
    pub(crate) outbox: f64,
    /// MiB on the disk.
    pub(crate) inbox: f64,
    /// MiB on the disk, of the tables that each turn writes to.
    pub(crate) catalog: f64,
    /// Bytes that PostgreSQL wrote to its log for a message, for all that this message caused.
    pub(crate) wal: f64,
    /// Microseconds of processor time of all relays for a message.
    pub(crate) processor: f64,
    /// A producer's transaction.
    pub(crate) commit: Times,
    /// From the answer to a commit to the effect.
    pub(crate) effect: Times,
}

/// Of many, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Times {
    pub(crate) median: f64,
    /// 99 of 100 took no longer.
    pub(crate) slow: f64,
    pub(crate) longest: f64,
}

impl Times {
    pub(crate) fn of(mut all: Vec<Duration>) -> Self {
        all.sort_unstable();
        let milliseconds = |at: usize| all.get(at).map_or(0.0, |time| 1_000.0 * time.as_secs_f64());
        let rank = |percent: usize| milliseconds((all.len() * percent).div_ceil(100).saturating_sub(1));
        Self { median: rank(50), slow: rank(99), longest: rank(100) }
    }
}

pub(crate) fn mib(bytes: f64) -> f64 {
    bytes / MIB
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let relays: Vec<String> = self.relays.iter().map(|memory| format!("{memory:.1}")).collect();
        let Times { median, slow, longest } = self.commit;
        write!(f, "{} committed, {} delivered, {:.0}/s; ", self.committed, self.delivered, self.rate)?;
        write!(f, "commit {median:.1}, {slow:.0}, {longest:.0} ms; ")?;
        write!(f, "effect {:.0}, {:.0} ms; ", self.effect.median, self.effect.slow)?;
        write!(f, "relays {} MiB, {:.0} us a message; ", relays.join(" and "), self.processor)?;
        write!(f, "outbox {:.1}, inbox {:.1}, catalog {:.2} MiB; ", self.outbox, self.inbox, self.catalog)?;
        write!(f, "WAL {:.0} B a message; nats-server {:.0} MiB", self.wal, self.nats)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_times_that_occurred() {
        let all = |count: u64| (1..=count).rev().map(Duration::from_millis).collect();
        assert_eq!(Times::of(all(200)), Times { median: 100.0, slow: 198.0, longest: 200.0 });
        assert_eq!(Times::of(all(1)), Times { median: 1.0, slow: 1.0, longest: 1.0 });
        assert_eq!(Times::of(all(0)), Times::default());
    }
}
