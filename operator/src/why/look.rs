//! The questions of "why": to the databases that know the key, and to NATS.

use std::{
    borrow::BorrowMut,
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use futures_util::future::join_all;
use oncebox_connect::{
    config::Config,
    error::{RelayError, error_chain},
    postgres::Parameter,
};
use tokio::time::timeout;

use super::{
    Case, Explained, Why, copy,
    facts::{Inboxes, Look},
    finish, inbox, outbox, walk,
};
use crate::{
    Operator, PlacedTrace, Result, TracedMessage,
    disk::full_disk,
    everywhere::within,
    obstacles::Expected,
    rows::all,
    status::{Status, findings::findings},
    survey,
};

/// Subjects that NATS is asked about, and messages ahead of others that are looked at, at most.
const SUBJECTS_MAX: usize = 50;
const HEADS_MAX: usize = 20;
/// Keys whose dead letters, and whose running handlers, are looked for, at most.
const KEYS_MAX: usize = 100;
const INBOXES_MAX: i64 = 100;
const ROWS_MAX: i64 = 100;

/// How a database, and its NATS, is asked.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::exhaustive_structs, reason = "a caller fills it in")]
pub struct WhySource<'a> {
    /// The whole configuration, where NATS is configured.
    pub config: Option<&'a Config>,
    /// Its status of the last seconds, if the caller has one; else it is read.
    pub status: Option<&'a Status>,
    /// Whether a configuration file names the database, so that commands choose it by its name.
    pub is_named: bool,
}

/// The answers, and the servers that gave none.
#[derive(Debug)]
#[non_exhaustive]
pub struct Looked {
    /// The answers.
    pub why: Why,
    /// Databases that did not answer.
    pub silent: Vec<(String, RelayError)>,
    /// Whether NATS did not answer.
    pub is_nats_away: bool,
}

/// Explains the traces of all databases, after [`look_elsewhere`](crate::look_elsewhere) has joined
/// them. Of each database `sources` says how it is asked, in the same order. `is_partial` says that
/// others did not answer, so that it cannot be said that no message has the key. Bounded by `limit`
/// for each server; changes nothing.
pub async fn explain<O: BorrowMut<Operator>>(
    key: &str,
    opened: &mut [(O, PlacedTrace)],
    sources: &[WhySource<'_>],
    is_partial: bool,
    limit: Duration,
) -> Looked {
    let is_unknown = opened.iter().all(|(_, placed)| {
        placed.trace.messages.is_empty() && placed.trace.inboxes.is_empty() && placed.trace.sagas.is_empty()
    });
    let keys = keys_of(opened);
    let looks = opened.iter_mut().zip(sources).map(|((operator, placed), source)| {
        let (keys, database) = (&keys, placed.database.clone());
        async move {
            let operator = operator.borrow_mut();
            let looking = async {
                let is_needed = is_unknown || !placed.trace.messages.is_empty();
                let look = if is_needed { Some(look(operator, placed, source, limit).await?) } else { None };
                Ok::<_, RelayError>((look, inboxes(operator, keys).await?))
            };
            // Its questions to PostgreSQL and to NATS have this time each.
            (database.clone(), within(3 * limit, database, looking).await)
        }
    });
    let (mut found, mut all, mut silent) = (Vec::new(), Inboxes::default(), Vec::new());
    for (database, looked) in join_all(looks).await {
        match looked {
            Ok((look, inboxes)) => {
                all.letters.extend(inboxes.letters);
                all.running.extend(inboxes.running);
                found.push(look);
            }
            Err(error) => {
                silent.push((database, error));
                found.push(None);
            }
        }
    }
    let placed: Vec<&PlacedTrace> = opened.iter().map(|(_, placed)| placed).collect();
    let answers = answers(key, &placed, &found, &all, sources, is_partial);
    let is_cut = placed.iter().any(|placed| placed.trace.is_cut);
    let is_nats_away = found.iter().flatten().any(|look| look.status.nats_problem.is_some());
    Looked { why: Why { key: key.to_owned(), answers, is_cut }, silent, is_nats_away }
}

/// The questions of inboxes are asked for these keys, each with its tenants: of a message that no
/// inbox knows, the only one.
fn keys_of<O>(opened: &[(O, PlacedTrace)]) -> Vec<(String, String)> {
    let mut keys = BTreeSet::new();
    for (_, PlacedTrace { trace, .. }) in opened {
        for message in &trace.messages {
            let tenants = message.inboxes.iter().map(|inbox| inbox.tenant.clone());
            keys.extend(tenants.chain([String::new()]).map(|tenant| (message.key.clone(), tenant)));
        }
        keys.extend(trace.inboxes.iter().map(|traced| (traced.key.clone(), traced.inbox.tenant.clone())));
        // The letters that others wait for.
        let inboxes = trace.messages.iter().flat_map(|message| &message.inboxes);
        let lines = inboxes.chain(trace.inboxes.iter().map(|traced| &traced.inbox));
        keys.extend(
            lines.filter_map(|inbox| Some((inbox.line.as_ref()?.letter_key.clone()?, String::new()))),
        );
    }
    keys.into_iter().take(KEYS_MAX).collect()
}

async fn look(
    operator: &mut Operator,
    placed: &PlacedTrace,
    source: &WhySource<'_>,
    limit: Duration,
) -> Result<Look> {
    let messages = &placed.trace.messages;
    let mut status = match source.status {
        Some(seen) => Status { nats: None, nats_problem: None, ..seen.clone() },
        None => {
            let (status, _) = operator.stand().await?;
            Status { full_disk: full_disk(&mut operator.client).await, ..status }
        }
    };
    status.findings = findings(&status);
    let pauses = operator.pauses().await?;
    let mut heads = HashMap::new();
    let ahead = messages.iter().filter_map(|message| message.parked.as_ref()?.behind.clone());
    for key in ahead.collect::<BTreeSet<_>>().into_iter().take(HEADS_MAX) {
        let trace = operator.trace(&key, 1).await?;
        let is_there = |message: &TracedMessage| message.key == key && message.parked.is_some();
        let head = trace.messages.iter().find(|message| is_there(message)).or(trace.messages.first());
        heads.extend(head.map(|message| (key.clone(), message.clone())));
    }
    let mut stored = HashMap::new();
    if let Some(config) = source.config.filter(|_| !messages.is_empty()) {
        let subjects = messages.iter().chain(heads.values()).map(|message| message.subject.clone());
        let subjects: Vec<String> =
            subjects.collect::<BTreeSet<_>>().into_iter().take(SUBJECTS_MAX).collect();
        let asking = survey::look(config, "oncebox why", &subjects, false);
        match timeout(limit, asking).await {
            Ok(Ok(survey)) => {
                stored = copy::find(operator, config, &survey, messages, limit).await?;
                status.nats = Some(survey);
            }
            Ok(Err(error)) => status.nats_problem = Some(error_chain(&error)),
            Err(_) => {
                let problem = format!("NATS at {} did not answer within {limit:?}", config.nats_target());
                status.nats_problem = Some(problem);
            }
        }
    }
    Ok(Look { status, pauses, heads, stored })
}

/// Handlers at work, and dead letters; nothing when this role may not look.
async fn inboxes(operator: &mut Operator, keys: &[(String, String)]) -> Result<Inboxes> {
    let sql = operator.sql.clone();
    let (keys, tenants): (Vec<String>, Vec<String>) = keys.iter().cloned().unzip();
    let transaction = operator.begin().await?;
    let looking = async {
        let of_locks: [&dyn Parameter; 4] = [&keys, &tenants, &INBOXES_MAX, &ROWS_MAX];
        let running = all(&transaction, "find running handlers", &sql.why_running, &of_locks).await?;
        let letters = all(&transaction, "find dead letters", &sql.why_letters, &[&keys, &ROWS_MAX]).await?;
        Ok(Inboxes { running, letters })
    };
    match looking.await {
        Err(RelayError::Denied(_)) => Ok(Inboxes::default()),
        looked => looked,
    }
}

fn answers(
    key: &str,
    placed: &[&PlacedTrace],
    found: &[Option<Look>],
    inboxes: &Inboxes,
    sources: &[WhySource<'_>],
    is_partial: bool,
) -> Vec<Explained> {
    let mut answers = Vec::new();
    for ((placed, look), source) in placed.iter().zip(found).zip(sources) {
        let expected = source.config.map(Expected::new).unwrap_or_default();
        if let Some(look) = look {
            let case = |message| Case { placed, message, look, inboxes, expected: &expected };
            answers.extend(placed.trace.messages.iter().map(|message| walk(&case(message))));
        }
    }
    let has_message =
        |key: &str| placed.iter().any(|placed| placed.trace.messages.iter().any(|one| one.key == key));
    for (placed, look) in placed.iter().zip(found) {
        let unled = look.as_ref().map_or(&[][..], |look| &look.status.sagas_unled);
        let lone = placed.trace.inboxes.iter().filter(|traced| !has_message(&traced.key));
        answers.extend(lone.map(|traced| {
            let end = inbox::of_lone(traced, &placed.database, inboxes);
            finish(&traced.key, Some(&placed.database), Vec::new(), end)
        }));
        answers.extend(placed.trace.sagas.iter().filter_map(|progress| {
            let end = inbox::of_saga(progress, unled)?;
            Some(finish(&progress.saga.key, Some(&placed.database), Vec::new(), end))
        }));
    }
    answers.sort_by(|one, other| one.key.cmp(&other.key));
    if answers.is_empty() {
        let statuses = placed
            .iter()
            .zip(found)
            .filter_map(|(placed, look)| Some((placed.database.as_str(), &look.as_ref()?.status)));
        let is_silent = is_partial || found.iter().any(Option::is_none);
        let (place, end) = outbox::unknown(key, &Vec::from_iter(statuses), is_silent);
        answers.push(finish(key, place.as_ref(), Vec::new(), end));
    }
    let is_named = |database: &str| {
        placed.iter().zip(sources).any(|(placed, source)| source.is_named && placed.database == database)
    };
    for answer in &mut answers {
        answer.remedy = answer.remedy.take().map(|remedy| remedy.naming(is_named));
    }
    answers
}
