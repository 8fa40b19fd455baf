//! The proof of a time: which messages were enqueued in it, whether the streams have them, and
//! whether the inboxes of this database had them. Each gap is named by its keys, and so are the
//! limits of the proof.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use oncebox_connect::{config::Config, postgres::Parameter};
use oncebox_relay::facts::{Expectation, covers};
use schemars::JsonSchema;
use serde::Serialize;
use tokio_postgres::Row;

use super::{
    BATCH, Operator, Result, query, survey,
    time::Time,
    verify::{Verification, VerificationFinding, Verified},
};

/// Inboxes, each of a scope and a tenant, that are looked at, at most.
const INBOXES_MAX: i64 = 64;
/// Subjects that are counted apart, and that NATS is asked about, at most.
const SUBJECTS_MAX: usize = 200;

/// The time that is to be proved.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "a caller makes one")]
pub struct ProofOf {
    /// Messages enqueued at this time or later,
    pub since: SystemTime,
    /// and before this one.
    pub until: SystemTime,
    /// Keys that each gap names, at most.
    pub keys_max: usize,
}

/// The proof of a time.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct Proof {
    /// The form of this document: `oncebox-proof-1`.
    pub format: &'static str,
    /// The name that the database has in PostgreSQL.
    pub postgres_database: String,
    /// The outbox's identity.
    pub outbox: String,
    /// Messages enqueued at this time or later,
    pub since: Time,
    /// and before this one, were looked at
    pub until: Time,
    /// from this time on.
    pub made_at: Time,
    /// Whether there is no gap.
    pub is_whole: bool,
    /// The messages of the log, by their subjects.
    pub subjects: Vec<ProvenSubject>,
    /// The comparisons with streams.
    pub streams: Vec<ProvenStream>,
    /// The inboxes' records of the messages that a stream has acknowledged.
    pub inboxes: Vec<ProvenInbox>,
    /// The limits of this proof.
    pub not_proven: Vec<String>,
}

/// How the messages of a subject stand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct ProvenSubject {
    /// The subject; `...` stands for all beyond the first.
    pub subject: String,
    /// Messages that were enqueued; it is the sum of the others.
    pub enqueued: u64,
    /// Acknowledged by a stream.
    pub stored: u64,
    /// Not sent yet, set aside, or sent again.
    pub waiting: u64,
    /// Given up by relays: a gap, until an operator retries or discards them.
    pub dead: u64,
    /// Discarded by an operator.
    pub discarded: u64,
    /// Keys of messages that wait or are dead, the first of them.
    pub gap: Vec<String>,
}

/// How a stream stands beside the log.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct ProvenStream {
    /// The counts.
    #[serde(flatten)]
    pub verified: Verified,
    /// Keys of messages that are missing or different, the first of them.
    pub gap: Vec<String>,
}

/// An inbox's records of the messages of a subject.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct ProvenInbox {
    /// The scope: `service:handler`.
    pub inbox: String,
    /// The subject.
    pub subject: String,
    /// Messages that a stream has acknowledged; it is the sum of the others.
    pub stored: u64,
    /// Handled, once each.
    pub handled: u64,
    /// Rejected by the handler, for good.
    pub rejected: u64,
    /// Dead letters: a gap.
    pub dead: u64,
    /// Not in the inbox: a gap.
    pub missing: u64,
    /// Keys of messages that are missing or dead, the first of them.
    pub gap: Vec<String>,
}

/// An inbox that is looked at, and one of its tenants.
struct Inbox {
    scope: String,
    tenant: String,
    keeps: Option<Duration>,
}

/// The counts under way.
#[derive(Default)]
struct Counts {
    subjects: BTreeMap<String, ProvenSubject>,
    /// By the scope, and the subject.
    inboxes: BTreeMap<(String, String), ProvenInbox>,
}

impl Operator {
    /// Proves a time, from the log, the streams and the inboxes of this database. Changes nothing;
    /// reads the log once, and each stream from that time on.
    ///
    /// # Errors
    /// PostgreSQL or NATS refused or went away.
    pub async fn prove(&mut self, config: Option<&Config>, of: ProofOf) -> Result<Proof> {
        let made_at = self.now().await?;
        let bounds: [&dyn Parameter; 2] = [&of.since, &of.until];
        let facts = self.query("read what bounds a proof", &self.sql.proof_facts, &bounds).await?.pop();
        let adopted_at = facts.as_ref().and_then(|facts| facts.get::<_, Option<SystemTime>>("adopted_at"));
        let asked = of.since;
        let of = ProofOf { since: adopted_at.map_or(asked, |at| asked.max(at)), ..of };
        let inboxes = self.query("list inboxes", &self.sql.proof_inboxes, &[&INBOXES_MAX]).await?;
        let mut inboxes: Vec<Inbox> = inboxes.iter().map(Inbox::read).collect();
        // One that is expected to have messages counts, even when it has none at all.
        let expected = self.expectations().await?;
        let expected: Vec<&Expectation> =
            expected.iter().filter(|one| one.inbox_database.is_none()).collect();
        for Expectation { handled_by: scope, .. } in expected.iter().copied() {
            if !inboxes.iter().any(|inbox| inbox.scope == *scope) {
                inboxes.push(Inbox { scope: scope.clone(), tenant: String::new(), keeps: None });
            }
        }
        let mut counts = Counts::default();
        for lane in self.lanes().await? {
            self.count_lane(lane, of, &inboxes, &mut counts).await?;
        }
        let mut not_proven =
            facts.as_ref().map(|facts| limits(facts, of, made_at, &inboxes)).unwrap_or_default();
        if of.since > asked {
            not_proven
                .push("what was enqueued before this outbox was adopted: its original sent that".to_owned());
        }
        if counts.subjects.is_empty() {
            not_proven.push("anything: the log has no message of this time".to_owned());
        }
        let streams = self.compare(config, of, &counts, &mut not_proven).await?;
        // An inbox that had no message of a subject does not take it.
        let is_expected = |proven: &ProvenInbox| {
            let mut of_inbox = expected.iter().filter(|one| one.handled_by == proven.inbox);
            of_inbox.any(|one| covers(&one.subject, &proven.subject))
        };
        let takes = |proven: &ProvenInbox| proven.missing < proven.stored || is_expected(proven);
        let proven: Vec<ProvenInbox> = counts.inboxes.into_values().filter(takes).collect();
        let subjects: Vec<ProvenSubject> = counts.subjects.into_values().collect();
        let is_whole = subjects.iter().all(|one| one.waiting + one.dead == 0)
            && streams.iter().all(|one| one.verified.is_whole())
            && proven.iter().all(|one| one.missing + one.dead == 0);
        let text = |name| facts.as_ref().map(|facts| facts.get::<_, String>(name)).unwrap_or_default();
        Ok(Proof {
            format: "oncebox-proof-1",
            postgres_database: text("database"),
            outbox: text("outbox"),
            since: Time(of.since),
            until: Time(of.until),
            made_at: Time(made_at),
            is_whole,
            subjects,
            streams,
            inboxes: proven,
            not_proven,
        })
    }

    async fn count_lane(
        &mut self,
        lane: i16,
        of: ProofOf,
        inboxes: &[Inbox],
        counts: &mut Counts,
    ) -> Result<()> {
        let sql = self.sql.proof.clone();
        let (scopes, tenants): (Vec<&str>, Vec<&str>) =
            inboxes.iter().map(|inbox| (inbox.scope.as_str(), inbox.tenant.as_str())).unzip();
        let mut after = 0_i64;
        loop {
            let parameters: [&dyn Parameter; 7] =
                [&lane, &after, &of.since, &of.until, &BATCH, &scopes, &tenants];
            let transaction = self.begin().await?;
            let rows = query(&transaction, "read messages for a proof", &sql, &parameters).await?;
            drop(transaction);
            for row in rows.iter().filter(|row| row.get::<_, Option<bool>>("is_meant") == Some(true)) {
                counts.add(row, inboxes, of.keys_max);
            }
            match rows.last() {
                Some(last) => after = last.get("id"),
                None => return Ok(()),
            }
        }
    }

    /// Compares the log with each stream that takes one of its subjects now.
    async fn compare(
        &mut self,
        config: Option<&Config>,
        of: ProofOf,
        counts: &Counts,
        not_proven: &mut Vec<String>,
    ) -> Result<Vec<ProvenStream>> {
        let Some(config) = config else {
            not_proven.push("whether the streams still have the messages: NATS is not configured".to_owned());
            return Ok(Vec::new());
        };
        let subjects: Vec<String> = counts.subjects.keys().filter(|one| *one != "...").cloned().collect();
        let survey = survey::look(config, "oncebox proof", &subjects, false).await?;
        not_proven.extend(survey.unasked.iter().chain(&survey.unusable).cloned());
        for one in counts.subjects.values().filter(|one| one.stored > 0 && one.subject != "...") {
            if !survey.streams.iter().any(|stream| stream.takes(&one.subject)) {
                not_proven
                    .push(format!("where messages to {} are stored: no stream takes them now", one.subject));
            }
        }
        let mut streams = Vec::new();
        for stream in &survey.streams {
            let asked = Verification {
                stream: stream.name.clone(),
                since: Some(of.since),
                until: Some(of.until),
                ..Verification::default()
            };
            let mut gap = Vec::new();
            let verified = self
                .verify(config, &asked, None, |finding| {
                    if let VerificationFinding::Message(message) = finding
                        && gap.len() < of.keys_max
                    {
                        gap.push(message.key.clone());
                    }
                })
                .await?;
            if verified.unproven > 0 {
                not_proven.push(format!(
                    "{} messages of stream {}, which may have let them go since",
                    verified.unproven, stream.name
                ));
            }
            streams.push(ProvenStream { verified, gap });
        }
        Ok(streams)
    }
}

impl Inbox {
    fn read(row: &Row) -> Self {
        let keeps = row.get::<_, Option<f64>>("retention_seconds");
        let keeps = keeps.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        Self { scope: row.get("scope"), tenant: row.get("tenant"), keeps }
    }
}

impl Counts {
    fn add(&mut self, row: &Row, inboxes: &[Inbox], keys_max: usize) {
        let (key, subject, state): (&str, &str, &str) =
            (row.get("key"), row.get("subject"), row.get("state"));
        let is_apart = self.subjects.contains_key(subject) || self.subjects.len() < SUBJECTS_MAX;
        let subject = if is_apart { subject } else { "..." };
        let counted = self
            .subjects
            .entry(subject.to_owned())
            .or_insert_with(|| ProvenSubject { subject: subject.to_owned(), ..ProvenSubject::default() });
        counted.enqueued += 1;
        match state {
            "stored" => counted.stored += 1,
            "discarded" => counted.discarded += 1,
            _ => {
                *(if state == "dead" { &mut counted.dead } else { &mut counted.waiting }) += 1;
                note(&mut counted.gap, key, keys_max);
            }
        }
        if state != "stored" {
            return;
        }
        // A scope has the message once one of its tenants has.
        let mut found = BTreeMap::<&str, &str>::new();
        for (inbox, status) in inboxes.iter().zip(row.get::<_, Vec<&str>>("inboxes")) {
            let of_scope = found.entry(&inbox.scope).or_default();
            *of_scope = if of_scope.is_empty() { status } else { of_scope };
        }
        for (scope, status) in found {
            let counted = self.inboxes.entry((scope.to_owned(), subject.to_owned())).or_insert_with(|| {
                ProvenInbox { inbox: scope.to_owned(), subject: subject.to_owned(), ..ProvenInbox::default() }
            });
            counted.stored += 1;
            match status {
                "completed" => counted.handled += 1,
                "rejected" => counted.rejected += 1,
                _ => {
                    *(if status == "dead" { &mut counted.dead } else { &mut counted.missing }) += 1;
                    note(&mut counted.gap, key, keys_max);
                }
            }
        }
    }
}

fn note(gap: &mut Vec<String>, key: &str, keys_max: usize) {
    if gap.len() < keys_max {
        gap.push(key.to_owned());
    }
}

/// The limits of a proof.
fn limits(facts: &Row, of: ProofOf, made_at: SystemTime, inboxes: &[Inbox]) -> Vec<String> {
    let mut limits = vec![
        "what inboxes of other databases did".to_owned(),
        "that a handler had the payload of the log: an inbox is asked for the key, in any of its tenants"
            .to_owned(),
    ];
    let age = made_at.duration_since(of.since).unwrap_or_default();
    let told = |time: Duration| humantime::format_duration(Duration::from_secs(time.as_secs())).to_string();
    let kept = facts.get::<_, Option<f64>>("kept_seconds");
    match kept.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()) {
        Some(kept) if kept < age => {
            limits.push(format!(
                "messages older than {}, which relays may have deleted from the log",
                told(kept)
            ));
        }
        None => limits.push(
            "what was deleted from the log before: no relay at work says how long it keeps messages"
                .to_owned(),
        ),
        Some(_) => {}
    }
    for inbox in inboxes {
        if let Some(keeps) = inbox.keeps.filter(|keeps| *keeps < age) {
            let what = format!(
                "keys of inbox {} that are older than {}, which it forgets",
                inbox.scope,
                told(keeps)
            );
            if !limits.contains(&what) {
                limits.push(what);
            }
        }
    }
    if i64::try_from(inboxes.len()).is_ok_and(|count| count == INBOXES_MAX) {
        limits.push(format!("what inboxes, with their tenants, beyond the first {INBOXES_MAX} did"));
    }
    let delayed: i64 = facts.get("delayed");
    if delayed > 0 {
        limits.push(format!("{delayed} delayed messages, which are not due yet"));
    }
    if facts.get("is_open") {
        limits.push("messages of transactions that are still open".to_owned());
    }
    limits
}
