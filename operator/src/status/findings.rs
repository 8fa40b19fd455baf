//! The findings of a status, that is all that holds delivery up: a line each, with its remedy.

mod inboxes;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;

use oncebox_connect::{
    config::Config,
    words::{counted, for_one},
};
use oncebox_relay::facts::{Explained, Fault, remedy};

use self::inboxes::{dead_letters, failing, line_due, unhandled};
use super::{
    super::{
        canaries::Canary,
        consumption::consumption,
        losses::LossStatus,
        obstacles::{Expected, obstacles},
        pause_row::PauseRow,
        relay_settings::RelaySettings,
        sagas::SagasUnled,
        shell::quoted,
    },
    Finding, Holder, LaneStatus, ParkedReason, SagasWaiting, Status,
};
use crate::{Diagnosis, status::RecentSubject, survey::Survey};

/// A relay that is suspended is cut off within 30 s; a pass that takes as long is worth a
/// word.
const PASS_SECONDS: f64 = 30.0;
/// Messages due for this time, with none settled meanwhile, are no pause between passes.
const STALL_SECONDS: f64 = 10.0;
/// A transaction that has enqueued messages and is open for this time is forgotten, perhaps.
const ENQUEUING_SECONDS: f64 = 60.0;

impl Finding {
    fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: remedy.into(), holds_delivery: true, kind: None }
    }

    /// Of something after delivery, or that an operator did.
    fn mild(self) -> Self {
        Self { holds_delivery: false, ..self }
    }
}

/// The kind of findings that make all others idle.
pub(crate) const DOWN: &str = "down";

/// The gravest first.
pub(crate) fn findings(status: &Status) -> Vec<Finding> {
    let mut found = Vec::new();
    found.extend(read_only(status));
    found.extend(status.full_disk.as_deref().map(full));
    found.extend(no_relay(status));
    found.extend(status.faults.iter().map(|fault| {
        let Explained { what, consequence, remedy } = fault.explained(&status.schema);
        let kind = is_silent(fault).then_some(DOWN);
        Finding { kind, ..Finding::new(format!("{what}: {consequence}"), remedy) }
    }));
    found.sort_by_key(|finding| finding.kind != Some(DOWN));
    found.extend(status.losses.iter().filter(|loss| loss.is_reported()).map(lost));
    found.extend(status.locks.iter().filter_map(|holder| locked(holder, &status.relay_name)));
    found.extend(stalled(status));
    found.extend(status.blocked.iter().map(|blocked| {
        Finding::new(
            format!(
                "ordering key {} is blocked ({} wait) by the dead message {} to {}: {}",
                blocked.ordering_key, blocked.behind, blocked.key, blocked.subject, blocked.reason
            ),
            format!(
                "mend the cause, then `oncebox outbox dead retry --key {0}`, or give it up: `oncebox outbox dead discard --key {0}`",
                quoted(&blocked.key)
            ),
        )
    }));
    let listed = i64::try_from(status.blocked.len()).unwrap_or(i64::MAX);
    if status.blocked_keys > listed {
        let more = status.blocked_keys - listed;
        found.push(Finding::new(
            format!("{} {} blocked", counted(more, "more ordering key"), for_one(more, "is", "are")),
            "see `oncebox outbox dead list`",
        ));
    }
    found.extend(dead(status));
    found.extend(status.pauses.iter().map(paused).map(Finding::mild));
    let others = status.parked_reasons.iter().filter(|group| group.cause.as_deref() != Some("paused"));
    found.extend(others.map(parked));
    found.extend(status.expectations.iter().filter_map(unhandled));
    let unled = |one: &SagasUnled| Finding::new(one.what(), one.remedy());
    found.extend(status.sagas_unled.iter().map(unled));
    found.extend(status.sagas_waiting.iter().map(sagas));
    let letters = || status.dead_letters.iter().flatten();
    found.extend(letters().filter(|group| group.behind > 0).map(dead_letters));
    let mild = letters().filter(|group| group.behind == 0).map(dead_letters);
    let canaries = status.canaries.iter().flatten().filter_map(Canary::problem);
    let mild = mild.chain(canaries.map(|(what, remedy)| Finding::new(what, remedy)));
    let mild = mild.chain(status.lines_due.iter().map(line_due));
    let mild = mild.chain(failing(status.inboxes.as_deref().unwrap_or_default())).chain(different(status));
    let mild = mild.chain(status.enqueuing.iter().filter_map(enqueuing)).chain(restored(&status.lanes));
    found.extend(mild.map(Finding::mild));
    found.sort_by_key(|finding| !finding.holds_delivery);
    found
}

/// Messages that are tried again. The commands take these, and none that waits for them.
fn parked(group: &ParkedReason) -> Finding {
    let ParkedReason { reason, cause, subject, messages, key, .. } = group;
    let known = || cause.as_deref().and_then(remedy).unwrap_or("mend the cause");
    let remedy = unsealed(reason).unwrap_or_else(known);
    let these = match messages {
        1 => format!("--key {}", quoted(key)),
        _ => format!("--subject-is {} --reason-is {}", quoted(subject), quoted(reason)),
    };
    Finding::new(
        format!("{messages} set aside, to {subject}: {reason}"),
        format!(
            "{remedy}; they are tried again by themselves, or now: `oncebox outbox parked retry {these}`; or give them up: \
             `oncebox outbox parked discard {these}`"
        ),
    )
}

/// All dead messages, which the commands take, where some of them hold nothing back: of the others
/// there is a finding each.
fn dead(status: &Status) -> Option<Finding> {
    let Status { dead, blocked_keys, .. } = status;
    (dead > blocked_keys).then(|| {
        let with = if *blocked_keys > 0 { ", with those that block ordering keys" } else { "" };
        let least = if *dead >= 100_000 { "at least " } else { "" };
        let (are, them) = (for_one(dead, "is", "are"), for_one(dead, "it", "them"));
        Finding::new(
            format!("{least}{} {are} dead{with}: relays send {them} no more", counted(dead, "message")),
            "see why with `oncebox outbox dead list`, mend the cause, then `oncebox outbox dead retry --all`, or give them up: \
             `oncebox outbox dead discard --all`",
        )
    })
}

/// Relays send nothing, so that it does not matter how NATS stands.
fn is_silent(fault: &Fault) -> bool {
    ["copy", "moved"].contains(&fault.fault)
}

fn read_only(status: &Status) -> Option<Finding> {
    let finding = Finding::new(
        "PostgreSQL takes no writes: it is a standby, or transactions are read-only by default",
        "connect to the primary; where an administrator made it read-only, see why (often a full disk), then set \
         default_transaction_read_only back",
    );
    status.is_read_only.then_some(Finding { kind: Some(DOWN), ..finding })
}

fn full(words: &str) -> Finding {
    let remedy = "make room on the disk of PostgreSQL; producers and relays go on by themselves";
    Finding { kind: Some(DOWN), ..Finding::new(words, remedy) }
}

/// The remedy where JetStream refuses for a bucket that is gone, or for a seal, which ends with no
/// limit.
pub(crate) fn unsealed(reason: &str) -> Option<&'static str> {
    if reason.contains("object store") && reason.contains("10059") {
        return Some(
            "nothing, if a relay runs: it makes its bucket again within a minute; to find the messages that were lost with \
             it, run outbox verify for each stream",
        );
    }
    reason.contains("10109").then(|| match reason.contains("object store") {
        true => "name another bucket with --object-store: a seal cannot be undone",
        false => "give the subject to another stream: a seal cannot be undone",
    })
}

/// Findings about NATS.
pub(crate) fn of_nats(config: &Config, survey: &Survey, subjects: &[RecentSubject]) -> Vec<Finding> {
    let finding = |found: Diagnosis| Finding {
        kind: Some(found.check),
        ..Finding::new(format!("{}: {}", found.what, found.consequence), found.remedy)
    };
    let held = obstacles(&Expected::new(config), survey, subjects).into_iter().map(finding);
    held.chain(consumption(survey, subjects).into_iter().map(finding).map(Finding::mild)).collect()
}

/// Nothing is delivered, with or without other findings.
pub(crate) fn nats_away(problem: &str) -> Finding {
    Finding::new(
        format!("{problem}; messages wait in the outbox until it is back"),
        "see whether the server runs, and whether URL, network, login and TLS are right; relays go on by themselves",
    )
}

/// Findings about pauses.
pub(crate) fn paused(pause: &PauseRow) -> Finding {
    let PauseRow { kind, value, rate, reason, paused_by, database_user, .. } = pause;
    let action = rate.map_or("paused".to_owned(), |rate| format!("throttled to {rate} messages/s"));
    let by = paused_by.as_ref().unwrap_or(database_user);
    let reason = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    let selection = match kind.as_str() {
        "all" => "--all".to_owned(),
        kind => format!("--{} {}", kind.replace(' ', "-"), quoted(value)),
    };
    let end = if pause.ends_at.is_some() { "it ends by itself, or" } else { "when it is time," };
    Finding::new(
        format!("{kind} {value}: {action} by {by}{reason}"),
        format!("{end} `oncebox outbox resume {selection}`; see `oncebox outbox pauses`"),
    )
}

/// Findings about streams that lost delivered messages.
pub(crate) fn lost(loss: &LossStatus) -> Finding {
    let remedy = format!(
        "have them sent again: `oncebox outbox resend --stream {}`, --dry-run to count them first",
        loss.stream
    );
    Finding::new(loss.what(), remedy)
}

/// Findings about sagas that go on only when an operator acts.
fn sagas(waiting: &SagasWaiting) -> Finding {
    let SagasWaiting { saga_type, state, sagas } = waiting;
    let word = quoted(saga_type);
    let [are, wait] = [("is", "are"), ("waits", "wait")].map(|(one, more)| for_one(sagas, one, more));
    Finding::new(
        format!("{} of type {saga_type} {are} {state} and {wait} for an operator", counted(sagas, "saga")),
        format!(
            "see `oncebox saga list --type {word}`, mend the cause, then `oncebox saga retry --type {word} --state {state}`; or give them \
             up: `oncebox saga abandon --type {word} --state {state}`"
        ),
    )
}

fn different(status: &Status) -> Option<Finding> {
    let what = RelaySettings::difference(&status.relay_settings)?;
    Some(Finding::new(what, "start all relays of this schema with the same --retention and --on-dead"))
}

fn no_relay(status: &Status) -> Option<Finding> {
    status.lacks_relay().then(|| Finding {
        holds_delivery: status.backlog_messages > 0,
        kind: Some(DOWN),
        ..Finding::new(
            format!("no relay is connected: no session has the application_name {:?}", status.relay_name),
            "start `oncebox relay`, or see in its log what keeps it away; relays with another application_name in \
             their URL are found by giving it here too",
        )
    })
}

pub(crate) fn locked(holder: &Holder, relay_name: &str) -> Option<Finding> {
    let ours = |name: &str| name == relay_name || name == "oncebox operator" || name.ends_with(" operator");
    let is_ours = holder.application_name.as_deref().is_some_and(ours);
    let is_short = holder.transaction_seconds.is_none_or(|seconds| seconds < PASS_SECONDS);
    if is_ours && is_short {
        return None;
    }
    let why = if is_ours { "it hangs: its session is ended within 30 s, or " } else { "" };
    let lanes: Vec<String> = holder.lanes.iter().map(ToString::to_string).collect();
    Some(Finding::new(
        format!(
            "{} {} locked by {}{}",
            if lanes.len() == 1 { "lane" } else { "lanes" },
            lanes.join(", ") + if lanes.len() == 1 { " is" } else { " are" },
            name(holder),
            since(holder)
        ),
        format!("{why}end its transaction: {}", end(holder)),
    ))
}

/// Due, not locked, a relay there, and yet nothing moves.
pub(crate) fn stalled(status: &Status) -> Option<Finding> {
    let is_locked = |lane: &LaneStatus| status.locks.iter().any(|lock| lock.lanes.contains(&lane.lane));
    let settled = status.lanes.iter().map(|lane| lane.settled_seconds).fold(f64::INFINITY, f64::min);
    let due = status.lanes.iter().filter(|lane| !is_locked(lane)).map(|lane| lane.lag_seconds);
    let due = due.fold(0.0, f64::max);
    let is_idle = status.relays.is_empty() || status.faults.iter().any(is_silent);
    (due >= STALL_SECONDS && settled >= STALL_SECONDS && !is_idle).then(|| {
        Finding::new(
            format!(
                "messages are due for {due:.0} s and nothing was settled for {settled:.0} s, though a relay is connected"
            ),
            "see /readyz and the log of the relay, which say why it cannot go on, and `oncebox doctor`: NATS is away or does \
             not acknowledge, the relay is suspended, or its role lacks a privilege",
        )
    })
}

fn enqueuing(holder: &Holder) -> Option<Finding> {
    holder.transaction_seconds.filter(|seconds| *seconds >= ENQUEUING_SECONDS)?;
    let what = format!(
        "{} has enqueued messages that are not committed{}; they delay no others",
        name(holder),
        since(holder)
    );
    Some(Finding::new(what, format!("have it commit, or end it: {}", end(holder))))
}

fn restored(lanes: &[LaneStatus]) -> Option<Finding> {
    let lanes = lanes.iter().filter(|lane| lane.is_restored).count();
    (lanes > 0).then(|| {
        Finding::new(
            format!(
                "{} {} from another cluster (a restored dump): what was due there is sent first",
                counted(lanes, "lane"),
                for_one(lanes, "comes", "come")
            ),
            "none is needed while a relay works",
        )
    })
}

pub(crate) fn name(holder: &Holder) -> String {
    let mut text = match (holder.pid, &holder.prepared) {
        (Some(pid), _) => format!("pid {pid}"),
        (None, Some(prepared)) => format!("the prepared transaction {prepared:?}"),
        (None, None) => "a prepared transaction".to_owned(),
    };
    let parts = [&holder.application_name, &holder.user_name, &holder.client].into_iter().flatten();
    let parts: Vec<&str> = parts.map(String::as_str).filter(|part| !part.is_empty()).collect();
    if !parts.is_empty() {
        // Writing to a String does not fail.
        let _ = write!(text, " ({})", parts.join(", "));
    }
    text
}

pub(crate) fn since(holder: &Holder) -> String {
    let state = holder.state.as_ref().map(|state| format!(", {state}")).unwrap_or_default();
    let seconds =
        holder.transaction_seconds.map(|seconds| format!(", its transaction open for {seconds:.0} s"));
    state + &seconds.unwrap_or_default()
}

pub(crate) fn end(holder: &Holder) -> String {
    match (holder.pid, &holder.prepared) {
        (Some(pid), _) => format!("SELECT pg_terminate_backend({pid})"),
        (None, Some(prepared)) => format!("ROLLBACK PREPARED '{}'", prepared.replace('\'', "''")),
        (None, None) => "ROLLBACK PREPARED, see pg_prepared_xacts".to_owned(),
    }
}
