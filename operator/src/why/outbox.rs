//! The way from the enqueuing transaction to the stream's acknowledgement.

use oncebox_connect::words::counted;
use oncebox_relay::facts::{Explained as FaultExplained, Fault, remedy};

use super::{Case, End, Explained, Outcome, Passed, Remedy, remedy::fields};
use crate::{
    TracedMessage, TracedParking, Verb,
    obstacles::obstacles,
    shell::quoted,
    status::{
        Holder, Status,
        findings::{DOWN, end, locked, name, nats_away, paused, since, stalled, unsealed},
    },
    survey::Survey,
    time::text,
};

/// The stations that every message of the log has passed.
pub(super) fn enqueued(case: &Case<'_>) -> Vec<Passed> {
    let TracedMessage { subject, lane, id, created_at, .. } = case.message;
    let place = if *lane < 0 { String::new() } else { format!(", lane {lane}, id {id}") };
    let what = format!("committed as {subject}{place}");
    vec![Passed { station: "transaction", what, at: Some(*created_at) }]
}

/// The end of a message that no stream has stored yet; `None` once one has.
pub(super) fn judge(case: &Case<'_>, passed: &mut Vec<Passed>) -> Option<End> {
    let TracedMessage { key, state, not_before, parked, .. } = case.message;
    Some(match (*state, parked) {
        ("settled", _) => return None,
        ("discarded", _) => discarded(case),
        ("delayed", _) if not_before.is_some_and(|at| Some(at) > case.status().at) => delayed(case),
        ("dead", Some(parked)) => dead(case, parked),
        ("waiting", Some(TracedParking { behind: Some(ahead), .. })) => waits_behind(case, ahead),
        (state, parked) => {
            if let Some(end) = in_the_way(case, passed) {
                return Some(end);
            }
            match parked {
                Some(parked) => set_aside(case, parked, state),
                None => due(case, key),
            }
        }
    })
}

fn discarded(case: &Case<'_>) -> End {
    let acts = case.placed.trace.audit.iter().flatten();
    let mut acts =
        acts.filter(|row| row.action == "discard" && row.key.as_deref() == Some(&case.message.key));
    let act = acts.next();
    let by = act.map(|row| {
        let who = row.operator.as_ref().unwrap_or(&row.database_user);
        let note = row.note.as_ref().map(|note| format!(": {note}")).unwrap_or_default();
        format!(" by {who} at {}{note}", text(row.happened_at))
    });
    let what = format!("it was discarded{}; no relay sends it", by.unwrap_or_default());
    let remedy = match act {
        Some(row) => Remedy::of_text(format!(
            "within a day, unless a later message of its ordering key was sent, this brings it back: `oncebox undo {}`; \
             else have its producer enqueue it again, under another key",
            row.id
        )),
        None => Remedy::words("have its producer enqueue it again, under another key"),
    };
    End { remedy: Some(remedy), ..End::new("outbox", Outcome::GivenUp, what) }
}

fn delayed(case: &Case<'_>) -> End {
    let at = case.message.not_before.map(text).unwrap_or_default();
    let key = quoted(&case.message.key);
    let remedy = Remedy::words(format!(
        "none is needed: relays send it by themselves at {at}; `oncebox outbox delayed cancel --key {key}` gives it up"
    ));
    End::held("delay", format!("its producer has delayed it until {at}"), remedy)
}

fn dead(case: &Case<'_>, parked: &TracedParking) -> End {
    let TracedParking { attempts, reason, died_at, .. } = parked;
    let at = died_at.map(|at| format!(" since {}", text(at))).unwrap_or_default();
    let what = format!("it is dead{at}, after {}: {reason}", counted(attempts, "attempt"));
    let cause = in_nats(case).map_or_else(|| remedy_of(parked), |found| found.remedy);
    let words = format!("mend the cause first ({cause}), then have it sent");
    End::held("outbox", what, Remedy::action(words, Verb::RetryDead, &[("key", &case.message.key)]))
}

/// The message that is ahead has its own answer, whose remedy is the one.
fn waits_behind(case: &Case<'_>, ahead: &str) -> End {
    let order = case.message.ordering_key.as_deref().unwrap_or_default();
    let known = case.look.heads.get(ahead);
    let (what, remedy) = match known {
        Some(message) => {
            let head = Case { message, ..*case };
            let End { what, remedy, .. } = replayed(&head).unwrap_or_else(|| {
                let Explained { station, outcome, what, behind, remedy, .. } = super::walk(&head);
                End { station, outcome, what, behind, remedy }
            });
            (what, remedy.unwrap_or_else(|| Remedy::of_text(see(ahead))))
        }
        None => ("it is not known how that stands".to_owned(), Remedy::of_text(see(ahead))),
    };
    let what =
        format!("it waits behind {ahead}, the message ahead of it in the ordering key {order}: {what}");
    End { behind: Some(ahead.to_owned()), ..End::held("ordering-key", what, remedy) }
}

fn see(key: &str) -> String {
    format!("see to that message: `oncebox why {}`", quoted(key))
}

/// A replay that is still to be sent holds the messages that wait for it as a message does; `None`
/// where there is none.
fn replayed(case: &Case<'_>) -> Option<End> {
    let message = case.message;
    let replay = message.replay.as_ref()?;
    if message.state != "settled" || ["done", "cancelled"].contains(&replay.state) {
        return None;
    }
    let end = in_the_way(case, &mut Vec::new()).unwrap_or_else(|| match &message.parked {
        Some(parked) if replay.state == "dead" => {
            let what =
                format!("it is dead, after {}: {}", counted(parked.attempts, "attempt"), parked.reason);
            End::held("outbox", what, Remedy::of_text(format!("mend the cause ({})", remedy_of(parked))))
        }
        Some(parked) => set_aside(case, parked, replay.state),
        None => End::new("lane", Outcome::OnItsWay, "relays send it in its turn"),
    });
    let give_up = format!("`oncebox outbox replay cancel --key {}` gives it up", quoted(&message.key));
    let remedy = end.remedy.map(|remedy| Remedy { what: format!("{}; {give_up}", remedy.what), ..remedy });
    let remedy = remedy.unwrap_or_else(|| Remedy::words(format!("none is needed; {give_up}")));
    let what = format!("a replay of it, asked for as {}, is still to be sent: {}", replay.request, end.what);
    Some(End { what, remedy: Some(remedy), ..end })
}

/// The obstacles before a stream, the gravest first.
fn in_the_way(case: &Case<'_>, passed: &mut Vec<Passed>) -> Option<End> {
    let status = case.status();
    if let Some(found) = status.findings.iter().find(|found| found.kind == Some(DOWN)) {
        let is_of_relay = !status.is_read_only && status.full_disk.is_none();
        let station = if is_of_relay { "relay" } else { "postgres" };
        return Some(End::held(station, &found.what, Remedy::of_text(&found.remedy)));
    }
    if let Some(fault) = status.faults.iter().find(|fault| fault.stops_delivery()) {
        return Some(broken(fault, status));
    }
    passed.push(Passed { station: "relay", what: relays(status), at: None });
    if let Some(pause) = case.pause(false) {
        let found = paused(pause);
        return Some(End::held("pause", found.what, resume(&pause.kind, &pause.value, found.remedy)));
    }
    let locks = status.locks.iter().filter(|lock| lock.lanes.contains(&case.message.lane));
    if let Some(found) = locks.filter_map(|lock| locked(lock, &status.relay_name)).next() {
        return Some(End::held("lane", found.what, Remedy::of_text(found.remedy)));
    }
    if let Some(problem) = &status.nats_problem {
        let found = nats_away(problem);
        return Some(End::held("nats", found.what, Remedy::of_text(found.remedy)));
    }
    if let Some(found) = in_nats(case) {
        let station = if found.check == "jetstream" { "nats" } else { "stream" };
        return Some(End::obstacle(station, found));
    }
    let throttle = case.pause(true)?;
    let found = paused(throttle);
    Some(End::held("pause", found.what, resume(&throttle.kind, &throttle.value, found.remedy)))
}

fn broken(fault: &Fault, status: &Status) -> End {
    let FaultExplained { what, consequence, remedy } = fault.explained(&status.schema);
    End::held("schema", format!("{what}: {consequence}"), Remedy::of_text(remedy))
}

fn resume(kind: &str, value: &str, words: String) -> Remedy {
    let kind = kind.replace(' ', "-");
    let select = if kind == "all" { ("all", "1") } else { (kind.as_str(), value) };
    Remedy::action(words, Verb::Resume, &[select])
}

fn relays(status: &Status) -> String {
    let groups = status.relays.iter().map(|group| {
        let at = group.client.as_ref().map(|client| format!(" at {client}")).unwrap_or_default();
        let leads = if group.leads { ", which leads" } else { "" };
        format!(
            "{} of {}{at}{leads}",
            counted(group.sessions, "session"),
            group.user_name.as_deref().unwrap_or("?")
        )
    });
    format!("relays are at work: {}", groups.collect::<Vec<_>>().join("; "))
}

/// The obstacle in NATS between the relays and the stream of this message.
fn in_nats(case: &Case<'_>) -> Option<crate::Diagnosis> {
    let survey = survey_of(case)?;
    let subject = [case.look.subject(&case.message.subject)];
    obstacles(case.expected, &survey, &subject).into_iter().next()
}

/// The part of the answers of NATS that is about this message.
pub(super) fn survey_of(case: &Case<'_>) -> Option<Survey> {
    let subject = &case.message.subject;
    let mut survey = case.status().nats.clone()?;
    survey.streams.retain(|stream| stream.takes(subject));
    survey.consumers.retain(|consumer| survey.streams.iter().any(|stream| stream.name == consumer.stream));
    survey.subjects_without_stream.retain(|one| one == subject);
    Some(survey)
}

fn set_aside(case: &Case<'_>, parked: &TracedParking, state: &str) -> End {
    let TracedParking { attempts, reason, next_attempt_at, .. } = parked;
    let next = next_attempt_at.map(|at| format!("; relays try it again at {}", text(at))).unwrap_or_default();
    let waits = if state == "waiting" { " with others, of which a few are tried" } else { "" };
    let what = format!("it is set aside{waits}, after {}: {reason}{next}", counted(attempts, "attempt"));
    let words = match (parked.cause.as_deref(), &case.status().nats) {
        (Some("paused"), _) => "none is needed: the pause has ended, and relays try it again".to_owned(),
        (_, Some(_)) => format!("{}; relays try it again by themselves", remedy_of(parked)),
        (_, None) => format!(
            "{}; relays try it again by themselves. With NATS_URL this command looks at the streams too",
            remedy_of(parked)
        ),
    };
    let retry = || fields(Verb::RetryParked, &[("key", &case.message.key)]);
    let now = next_attempt_at.map_or(Vec::new(), |_| retry());
    End::held("outbox", what, Remedy { action: now, ..Remedy::of_text(words) })
}

fn remedy_of(parked: &TracedParking) -> String {
    let known = || parked.cause.as_deref().and_then(remedy).unwrap_or("mend the cause");
    unsealed(&parked.reason).unwrap_or_else(known).to_owned()
}

/// Due, and nothing is in its way.
fn due(case: &Case<'_>, key: &str) -> End {
    let status = case.status();
    if let Some(found) = stalled(status) {
        return End::held("relay", found.what, Remedy::of_text(found.remedy));
    }
    let lane = status.lanes.iter().find(|lane| lane.lane == case.message.lane);
    let ahead = lane.map_or(String::new(), |lane| {
        format!(
            ": {} due in lane {}, the oldest for {:.1} s; its cursor moved {:.0} s ago",
            counted(lane.backlog_messages, "message"),
            lane.lane,
            lane.lag_seconds,
            lane.settled_seconds
        )
    });
    let moved = if case.message.state == "delayed" {
        "its time has come, and a relay moves it into the log"
    } else {
        "a relay sends it in its turn"
    };
    let nats = if status.nats.is_none() { "; NATS was not asked" } else { "" };
    let what = format!("{key} is due, and nothing is seen to hold it: {moved}{ahead}{nats}");
    End::new("lane", Outcome::OnItsWay, what)
}

/// The end for a key that no message has: a transaction may not have committed yet.
pub(super) fn unknown(key: &str, places: &[(&str, &Status)], is_silent: bool) -> (Option<String>, End) {
    // Where policies hide rows, it may be there.
    for (place, status) in places {
        if let Some(fault) = status.faults.iter().find(|fault| fault.fault == "row-security") {
            return (Some((*place).to_owned()), broken(fault, status));
        }
    }
    let open =
        places.iter().flat_map(|(place, status)| status.enqueuing.iter().map(move |open| (*place, open)));
    let seconds = |holder: &Holder| holder.transaction_seconds.unwrap_or_default();
    let oldest = open.clone().max_by(|(_, one), (_, other)| seconds(one).total_cmp(&seconds(other)));
    if let Some((place, holder)) = oldest {
        let others = match open.count() {
            1 => String::new(),
            count => format!(" It is the oldest of {count}."),
        };
        let what = format!(
            "no committed message has this key. {} has enqueued messages that are not committed{}, and this may be one of \
             them.{others}",
            name(holder),
            since(holder)
        );
        let remedy = Remedy::of_text(format!(
            "have its program commit. If it hangs, end it: its messages are rolled back, and can be enqueued again: {}",
            end(holder)
        ));
        return (Some(place.to_owned()), End::held("transaction", what, remedy));
    }
    if is_silent {
        let what =
            "no database that answered has a message with this key; what did not answer is named beside";
        return (None, End::new("postgres", Outcome::Unknown, what));
    }
    if let Some((root, _)) = key.split_once(":oncebox-edit-") {
        let what = "no outbox has this key, and no inbox has begun with it: an edit of a dead letter is sent at once to the \
                    stream that the letter came from, and waits there for its consumers";
        let remedy = Remedy::of_text(format!(
            "none is needed while they run; who has edited the message, and when: `oncebox trace {}`",
            quoted(root)
        ));
        return (None, End { remedy: Some(remedy), ..End::new("stream", Outcome::Unknown, what) });
    }
    let what = "no message has this key: it was never enqueued, its transaction was rolled back, it was cancelled while it \
                was delayed, or it was deleted after the retention time";
    let remedy = Remedy::words(format!(
        "see in the producer's log whether its transaction committed, and under which key; it can enqueue {} again",
        quoted(key)
    ));
    (None, End { remedy: Some(remedy), ..End::new("transaction", Outcome::Unknown, what) })
}
