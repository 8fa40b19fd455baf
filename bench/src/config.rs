//! The choice and the size of measurements, from the arguments and the environment.
//!
//! | variable | default | range | meaning |
//! |---|---|---|---|
//! | `ITERATIONS` | 3 | 1 to 100 | rounds of every measurement, three times as many of HTTP's; medians are reported |
//! | `MESSAGES` | 300000 | 1000 to 10000000 | the backlog that is drained |
//! | `BACKLOG` | 10000000 | 10000 to 100000000 | the large backlog of `scale` |
//! | `ROWS` | 3000000 | 10000 to 100000000 | the history of `growth` |
//! | `DURATION_SECONDS` | 20 | 1 to 3600 | the length of each round of a timed measurement |
//! | `DBOS_PYTHON` | none | a path | a Python with dbos 3.4 and psycopg-pool, for the peer of `saga` |
//!
//! The published table uses the defaults. `ITERATIONS=1 MESSAGES=3000 DURATION_SECONDS=1` is the
//! smoke test: it proves that every measurement works, and nothing about speed.

use std::{fmt, ops::RangeInclusive, time::Duration};

use crate::compare::Pair;

const DEFAULT_ROUNDS: usize = 3;
const DEFAULT_MESSAGES: usize = 300_000;
const DEFAULT_BACKLOG: usize = 10_000_000;
const DEFAULT_ROWS: usize = 3_000_000;
const DEFAULT_SECONDS: usize = 20;

/// Checked settings.
#[derive(Debug)]
pub(crate) struct Config {
    /// How often each measurement is taken.
    pub(crate) rounds: usize,
    /// The size of the backlog.
    pub(crate) messages: usize,
    /// The size of the large backlog.
    pub(crate) backlog: usize,
    /// The messages that are settled already.
    pub(crate) rows: usize,
    /// How long each round of a timed measurement lasts.
    pub(crate) duration: Duration,
    /// The Python that runs the peer of `saga`, if one is given.
    pub(crate) dbos_python: Option<String>,
    /// The programs that are compared, if two are given: `compare OLD NEW`.
    pub(crate) compare: Option<Pair>,
    /// The measurements, in this order.
    pub(crate) measurements: Vec<Measurement>,
}

/// One module each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measurement {
    Drain,
    Trickle,
    Mixed,
    Idle,
    Inbox,
    Drivers,
    Http,
    Enqueue,
    Saga,
    Delayed,
    Fleet,
    Databases,
    Scale,
    Console,
    Outage,
    Pipeline,
    Publish,
    Loss,
    Large,
    Gate,
    Growth,
    Contracts,
}

impl Measurement {
    const ALL: [Self; 22] = [
        Self::Drain,
        Self::Trickle,
        Self::Mixed,
        Self::Idle,
        Self::Inbox,
        Self::Drivers,
        Self::Http,
        Self::Enqueue,
        Self::Saga,
        Self::Delayed,
        Self::Fleet,
        Self::Databases,
        Self::Scale,
        Self::Console,
        Self::Outage,
        Self::Pipeline,
        Self::Publish,
        Self::Loss,
        Self::Large,
        Self::Gate,
        Self::Growth,
        Self::Contracts,
    ];

    /// The measurements that take a few minutes together.
    fn by_default() -> impl Iterator<Item = Self> {
        let on_demand = |measurement: &Self| {
            use Measurement::{
                Console, Contracts, Databases, Fleet, Gate, Growth, Large, Loss, Outage, Pipeline, Publish,
                Scale,
            };
            matches!(
                measurement,
                Fleet
                    | Gate
                    | Databases
                    | Scale
                    | Console
                    | Outage
                    | Pipeline
                    | Publish
                    | Loss
                    | Large
                    | Growth
                    | Contracts
            )
        };
        Self::ALL.into_iter().filter(move |measurement| !on_demand(measurement))
    }
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Drain => "drain",
            Self::Trickle => "trickle",
            Self::Mixed => "mixed",
            Self::Fleet => "fleet",
            Self::Databases => "databases",
            Self::Idle => "idle",
            Self::Inbox => "inbox",
            Self::Drivers => "drivers",
            Self::Http => "http",
            Self::Enqueue => "enqueue",
            Self::Saga => "saga",
            Self::Delayed => "delayed",
            Self::Scale => "scale",
            Self::Console => "console",
            Self::Outage => "outage",
            Self::Pipeline => "pipeline",
            Self::Publish => "publish",
            Self::Loss => "loss",
            Self::Large => "large",
            Self::Gate => "gate",
            Self::Growth => "growth",
            Self::Contracts => "contracts",
        })
    }
}

/// Reads the arguments and the environment of this process.
///
/// # Errors
/// One text with everything that is wrong.
pub(crate) fn load() -> Result<Config, String> {
    #[expect(clippy::disallowed_methods, reason = "this is the module that reads the environment")]
    parse(std::env::args().skip(1), |name| std::env::var(name).ok())
}

fn parse(
    mut arguments: impl Iterator<Item = String>,
    lookup: impl Fn(&str) -> Option<String>,
) -> Result<Config, String> {
    let mut mistakes = Vec::new();
    // make passes unset variables on as empty.
    let given = |name: &str| lookup(name).filter(|text| !text.is_empty());
    let mut number = |name: &str, default: usize, range: RangeInclusive<usize>| match given(name) {
        None => default,
        Some(text) => text.parse().ok().filter(|value| range.contains(value)).unwrap_or_else(|| {
            mistakes.push(format!(
                "{name}={text:?} is not a number from {} to {}",
                range.start(),
                range.end()
            ));
            default
        }),
    };
    let rounds = number("ITERATIONS", DEFAULT_ROUNDS, 1..=100);
    let messages = number("MESSAGES", DEFAULT_MESSAGES, 1_000..=10_000_000);
    let backlog = number("BACKLOG", DEFAULT_BACKLOG, 10_000..=100_000_000);
    let rows = number("ROWS", DEFAULT_ROWS, 10_000..=100_000_000);
    let seconds = number("DURATION_SECONDS", DEFAULT_SECONDS, 1..=3_600);
    let dbos_python = given("DBOS_PYTHON");
    let mut measurements = Vec::new();
    let mut compare = None;
    while let Some(argument) = arguments.next() {
        if argument == "compare" {
            match (arguments.next(), arguments.next()) {
                (Some(old), Some(new)) => compare = Some(Pair { old: old.into(), new: new.into() }),
                _ => mistakes.push("compare takes two programs: compare OLD NEW".to_owned()),
            }
            continue;
        }
        match Measurement::ALL.into_iter().find(|known| known.to_string() == argument) {
            Some(known) => measurements.push(known),
            None => mistakes.push(format!(
                "{argument:?} is not a measurement: {}",
                Measurement::ALL.map(|known| known.to_string()).join(", ")
            )),
        }
    }
    if measurements.is_empty() {
        measurements.extend(Measurement::by_default());
    }
    if mistakes.is_empty() {
        let duration = Duration::from_secs(seconds as u64);
        Ok(Config { rounds, messages, backlog, rows, duration, dbos_python, compare, measurements })
    } else {
        Err(mistakes.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(arguments: &[&str], environment: &[(&str, &str)]) -> Result<Config, String> {
        parse(arguments.iter().map(ToString::to_string), |wanted| {
            environment.iter().find(|(name, _)| *name == wanted).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn what_takes_minutes_is_measured_by_default() {
        let config = check(&[], &[]).unwrap();
        assert_eq!(config.measurements, Measurement::by_default().collect::<Vec<_>>());
        assert_eq!(check(&["scale"], &[]).unwrap().measurements, [Measurement::Scale]);
        assert_eq!((config.rounds, config.messages, config.duration.as_secs()), (3, 300_000, 20));
    }

    #[test]
    fn arguments_and_environment_choose() {
        let config = check(&["inbox", "drain"], &[("ITERATIONS", "1"), ("MESSAGES", "3000")]).unwrap();
        assert_eq!(config.measurements, [Measurement::Inbox, Measurement::Drain]);
        assert_eq!((config.rounds, config.messages), (1, 3_000));
    }

    #[test]
    fn two_programs_are_compared() {
        let config = check(&["compare", "a/bench", "b/bench", "drain"], &[]).unwrap();
        assert_eq!(config.compare, Some(Pair { old: "a/bench".into(), new: "b/bench".into() }));
        assert_eq!(config.measurements, [Measurement::Drain]);
        assert!(check(&["compare", "a/bench"], &[]).unwrap_err().contains("compare OLD NEW"));
    }

    #[test]
    fn all_mistakes_are_reported_at_once() {
        let error = check(&["drian"], &[("ITERATIONS", "0"), ("DURATION_SECONDS", "soon")]).unwrap_err();
        for named in ["ITERATIONS=\"0\"", "DURATION_SECONDS=\"soon\"", "\"drian\""] {
            assert!(error.contains(named), "{named} in {error}");
        }
    }
}
