//! Whether the figures are flat: the medians of the last third of the samples against those of the
//! first third.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::sample::Sample;

/// With fewer samples in a third a single one decides.
const SAMPLES_MIN: usize = 3;

struct Figure {
    name: &'static str,
    kind: Kind,
    of: fn(&Sample) -> f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// May not fall.
    Rate,
    Size,
    Memory,
    /// Of a program with a collector, by which it swings.
    CollectedMemory,
    Time,
    /// Of producers, who may wait for the end of a turn.
    WaitingTime,
    /// A single event decides, so it is only shown.
    Shown,
}

const FIGURES: [Figure; 14] = [
    Figure { name: "delivered a second", kind: Kind::Rate, of: |sample| sample.rate },
    Figure { name: "outbox on disk, MiB", kind: Kind::Size, of: |sample| sample.outbox },
    Figure { name: "inbox on disk, MiB", kind: Kind::Size, of: |sample| sample.inbox },
    Figure { name: "catalog on disk, MiB", kind: Kind::Size, of: |sample| sample.catalog },
    Figure {
        name: "WAL for a message, its ledger and its effect, bytes",
        kind: Kind::Size,
        of: |sample| sample.wal,
    },
    Figure {
        name: "memory of the larger relay, MiB",
        kind: Kind::Memory,
        of: |sample| largest(&sample.relays),
    },
    Figure { name: "memory of nats-server, MiB", kind: Kind::CollectedMemory, of: |sample| sample.nats },
    Figure { name: "relays' processor time a message, us", kind: Kind::Time, of: |sample| sample.processor },
    Figure { name: "a producer's commit, median, ms", kind: Kind::Time, of: |sample| sample.commit.median },
    Figure {
        name: "the same, 99th percentile, ms",
        kind: Kind::WaitingTime,
        of: |sample| sample.commit.slow,
    },
    Figure { name: "the same, the longest, ms", kind: Kind::Shown, of: |sample| sample.commit.longest },
    Figure { name: "commit to effect, median, ms", kind: Kind::Time, of: |sample| sample.effect.median },
    Figure { name: "the same, 99th percentile, ms", kind: Kind::Time, of: |sample| sample.effect.slow },
    Figure { name: "the same, the longest, ms", kind: Kind::Shown, of: |sample| sample.effect.longest },
];

impl Kind {
    /// How many times as much the last third may have.
    fn factor(self) -> f64 {
        match self {
            Self::Rate | Self::Size => 1.1,
            Self::Memory | Self::CollectedMemory => 1.2,
            Self::Time | Self::WaitingTime => 1.5,
            Self::Shown => f64::INFINITY,
        }
    }

    /// Differences as small as this say nothing.
    fn slack(self) -> f64 {
        match self {
            Self::Rate | Self::Shown => 0.0,
            Self::Size => 0.5,
            Self::Memory | Self::Time => 3.0,
            Self::CollectedMemory => 48.0,
            // The longest time that the end of a turn waits.
            Self::WaitingTime => 200.0,
        }
    }

    fn is_flat(self, first: f64, last: f64) -> bool {
        let (from, to) = if self == Self::Rate { (last, first) } else { (first, last) };
        to <= from * self.factor() || to - from < self.slack()
    }
}

/// Prints all figures; true when they are flat.
pub(crate) fn print(samples: &[Sample], warm_up: Duration) -> Result<bool> {
    let samples: Vec<&Sample> = samples.iter().filter(|sample| sample.at > warm_up).collect();
    let third = samples.len() / 3;
    ensure!(third >= SAMPLES_MIN, "{} samples are too few", samples.len());
    let (first, last) = (&samples[..third], &samples[samples.len() - third..]);
    println!("\n| figure, median of {third} samples | first third | last third | ratio | at most | |");
    println!("|---|---|---|---|---|---|");
    let mut are_flat = true;
    for Figure { name, kind, of } in &FIGURES {
        let (first, last) = (median(first, *of), median(last, *of));
        let is_flat = kind.is_flat(first, last);
        are_flat &= is_flat;
        let most = match kind {
            Kind::Shown => "-".to_owned(),
            Kind::Rate => format!("at least {:.2}", 1.0 / kind.factor()),
            _ => kind.factor().to_string(),
        };
        let word = if is_flat { "flat" } else { "WRONG" };
        println!("| {name} | {first:.1} | {last:.1} | {:.2} | {most} | {word} |", last / first);
    }
    println!();
    Ok(are_flat)
}

fn median(samples: &[&Sample], of: fn(&Sample) -> f64) -> f64 {
    let mut values: Vec<f64> = samples.iter().map(|sample| of(sample)).collect();
    values.sort_by(f64::total_cmp);
    f64::midpoint(values[(values.len() - 1) / 2], values[values.len() / 2])
}

fn largest(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A minute between two samples, the first of which are of the warm-up.
    fn samples(change: impl Fn(f64, &mut Sample)) -> Vec<Sample> {
        let times = super::super::sample::Times { median: 10.0, slow: 100.0, longest: 1_000.0 };
        let sample = |minute: u32| {
            let mut sample = Sample {
                at: Duration::from_secs(60) * minute,
                rate: 1_000.0,
                relays: vec![20.0, 30.0],
                nats: 50.0,
                outbox: 40.0,
                inbox: 80.0,
                catalog: 5.0,
                wal: 900.0,
                processor: 70.0,
                commit: times,
                effect: times,
                ..Sample::default()
            };
            change(f64::from(minute), &mut sample);
            sample
        };
        (0..20).map(sample).collect()
    }

    #[test]
    fn each_growth_is_found() {
        let check = |is_flat: bool, change: fn(f64, &mut Sample)| {
            assert_eq!(print(&samples(change), Duration::from_secs(65)).unwrap(), is_flat);
        };
        check(true, |_, _| {});
        check(true, |minute, sample| sample.outbox += if minute < 2.0 { 500.0 } else { 0.0 });
        check(true, |minute, sample| sample.effect.slow *= if minute == 19.0 { 50.0 } else { 1.0 });
        check(true, |minute, sample| sample.rate += minute);
        check(false, |minute, sample| sample.rate -= 20.0 * minute);
        check(false, |minute, sample| sample.outbox += minute);
        check(false, |minute, sample| sample.inbox += minute);
        check(false, |minute, sample| sample.catalog += 0.1 * minute);
        check(false, |minute, sample| sample.wal += 20.0 * minute);
        check(false, |minute, sample| sample.relays[1] += minute);
        check(false, |minute, sample| sample.nats += 5.0 * minute);
        check(false, |minute, sample| sample.processor += 7.0 * minute);
        check(false, |minute, sample| sample.commit.median += minute);
        check(false, |minute, sample| sample.commit.slow += 20.0 * minute);
        check(false, |minute, sample| sample.effect.median += minute);
        check(false, |minute, sample| sample.effect.slow += 10.0 * minute);
    }

    #[test]
    fn few_samples_show_nothing() {
        assert!(print(&samples(|_, _| {})[..9], Duration::from_secs(65)).is_err());
    }
}
