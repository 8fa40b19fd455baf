//! `oncebox doctor`: facts of both servers, and their meaning for a relay with this configuration.
//!
//! Facts are gathered by `examine` and `survey`, each within a deadline, and change nothing.
//! Pure functions here draw the conclusions, one function for each thing that is looked at.

mod clocks;
mod database;
mod examine;
mod facts;
mod inboxes;
mod losses;
mod nats;
mod streams;

use std::time::Duration;

use oncebox_connect::{config::Config, error::error_chain, nats::Server};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    consumption::consumption,
    diagnosis::{
        Diagnosis,
        Severity::{self, Problem, Warning},
    },
    obstacles::{Expected, obstacles},
    survey::{self, Survey},
};

pub use self::facts::{DatabaseFacts, InboxFacts, Lacking};

/// The largest payload that the relay sends in its message, and not by a bucket.
const INLINE_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// So full, or fuller, is worth a word.
const FILLED: f64 = 0.8;

/// The facts that a doctor saw, and the findings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct Examination {
    /// PostgreSQL; `None` when it cannot be reached.
    pub postgres: Option<DatabaseFacts>,
    /// Why it cannot.
    pub postgres_problem: Option<String>,
    /// NATS; `None` when it cannot be reached.
    pub nats: Option<Survey>,
    /// Why it cannot.
    pub nats_problem: Option<String>,
    /// The findings, the gravest first.
    pub findings: Vec<Diagnosis>,
}

impl Examination {
    /// Both servers answered.
    #[must_use]
    pub fn reached_both(&self) -> bool {
        self.postgres.is_some() && self.nats.is_some()
    }

    /// Something must be mended.
    #[must_use]
    pub fn has_problem(&self) -> bool {
        self.findings.iter().any(|found| found.severity == Problem)
    }
}

/// The part of a relay's configuration that is compared with the servers.
#[derive(Clone, Debug)]
struct Plan {
    /// After how long at most a message is sent again while both servers work.
    resend: Duration,
    /// How long settled messages are kept; `None` is for ever.
    retention: Option<Duration>,
    /// How long a saga takes at most, where there are any.
    saga_lifetime: Option<Duration>,
    expected: Expected,
    /// The longest pause between two polls.
    poll_max: Duration,
    /// Large payloads go to a bucket.
    has_bucket: bool,
    /// The openings that the configuration leaves to others on the network.
    weaknesses: Vec<String>,
}

/// Looks at both servers with a relay's configuration and role. Every wait is bounded, together two
/// minutes at most; nothing is changed.
///
/// ```no_run
/// # async fn example(config: &oncebox_connect::config::Config) {
/// let examination = oncebox_operator::examine(config).await;
/// for found in &examination.findings {
///     println!("{:?}: {} - {} - {}", found.severity, found.what, found.consequence, found.remedy);
/// }
/// # }
/// ```
pub async fn examine(config: &Config) -> Examination {
    let mut examination = Examination::default();
    match examine::examine(&config.outbox).await {
        Ok(facts) => examination.postgres = Some(facts),
        Err(error) => examination.postgres_problem = Some(error_chain(&error)),
    }
    let subjects = examination.postgres.iter().flat_map(|facts| &facts.subjects);
    let subjects: Vec<String> = subjects.map(|subject| subject.subject.clone()).collect();
    match survey::look(config, "oncebox doctor", &subjects, true).await {
        Ok(mut survey) => {
            note_payload_max(config, &mut survey).await;
            examination.nats = Some(survey);
        }
        Err(error) => examination.nats_problem = Some(error_chain(&error)),
    }
    examination.findings = diagnose(&plan(config), &examination);
    examination
}

/// An account may take less than its server, which only messages of such sizes show.
async fn note_payload_max(config: &Config, survey: &mut Survey) {
    match Server::new(config, "oncebox doctor".to_owned()).find_payload_max().await {
        Ok(Some(bytes)) => survey.max_payload_bytes = bytes as u64,
        Ok(None) => {}
        Err(problem) => survey.unasked.push(problem),
    }
}

fn plan(config: &Config) -> Plan {
    Plan {
        resend: config.tuning.limits.resend_max(),
        retention: config.outbox.retention,
        saga_lifetime: config.saga_lifetime,
        expected: Expected::new(config),
        poll_max: config.tuning.poll_max,
        has_bucket: config.tuning.limits.large_payloads.is_some(),
        weaknesses: config.weaknesses.clone(),
    }
}

/// The findings that follow from the facts; the gravest first, else in the order of looking.
fn diagnose(plan: &Plan, seen: &Examination) -> Vec<Diagnosis> {
    let mut found = Vec::new();
    match (&seen.postgres, &seen.postgres_problem) {
        (Some(facts), _) => {
            database::check(plan, facts, &mut found);
            losses::check(&facts.losses, &mut found);
        }
        (None, problem) => {
            found.push(unreachable("postgres", "no message is enqueued or relayed", problem.as_ref()))
        }
    }
    match (&seen.nats, &seen.nats_problem) {
        (Some(survey), _) => {
            let subjects =
                seen.postgres.iter().flat_map(|facts| &facts.subjects).cloned().collect::<Vec<_>>();
            found.extend(obstacles(&plan.expected, survey, &subjects));
            found.extend(consumption(survey, &subjects));
            nats::check(plan, survey, &subjects, &mut found);
            streams::check_bucket(survey, &mut found);
            // Of one without a leader not all is known.
            for stream in survey.streams.iter().filter(|stream| stream.has_leader) {
                streams::check(plan, survey, stream, &subjects, &mut found);
            }
            let inboxes = seen.postgres.iter().flat_map(|facts| &facts.inboxes).cloned().collect::<Vec<_>>();
            inboxes::check(plan, &survey.streams, &inboxes, &mut found);
        }
        (None, problem) => {
            found.push(unreachable("nats", "messages wait in the outbox until it is back", problem.as_ref()));
        }
    }
    let clocks = [
        ("PostgreSQL", seen.postgres.as_ref().and_then(|facts| facts.clock)),
        ("NATS", seen.nats.as_ref().and_then(|survey| survey.clock)),
    ];
    clocks::check(&clocks, &mut found);
    found.extend(plan.weaknesses.iter().map(|weakness| {
        let consequence = "whoever is on the way can read and change what is sent";
        Warning.of("plain-text", weakness.as_str(), consequence, "do as it says, on each relay")
    }));
    found.sort_by_key(|found| found.severity);
    found
}

fn unreachable(check: &'static str, consequence: &str, problem: Option<&String>) -> Diagnosis {
    Problem.of(
        check,
        problem.cloned().unwrap_or_default(),
        consequence,
        "see whether the server runs, and whether URL, network, login and TLS are right",
    )
}

/// `90s`, `2m`.
fn time(seconds: f64) -> String {
    let time = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    // To the millisecond: more digits help no reader.
    let rounded = Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    humantime::format_duration(rounded).to_string()
}

#[cfg(test)]
mod tests;
