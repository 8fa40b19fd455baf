//! The way through inboxes: handlers, leases, effects, dead letters; and sagas.

use oncebox_connect::words::counted;

use super::{
    Case, End, Outcome, Passed, Remedy,
    facts::{Inboxes, Letter, Running},
    stream,
};
use crate::{
    TracedInbox, TracedKey, Verb,
    sagas::{SagaProgress, SagasUnled, is_refused, saga_of_answer},
    shell::quoted,
    time::text,
    trace::{TracedEffect, TracedLease},
};

/// The end that an inbox says; `None` when none has the key, or all that have it have handled it.
pub(super) fn judge(case: &Case<'_>, passed: &mut Vec<Passed>) -> Option<End> {
    let key = case.message.key.as_str();
    let database = &case.placed.database;
    for inbox in case.message.inboxes.iter().filter(|inbox| is_handled(inbox)) {
        let what = format!("{}{}{}", ended(inbox), of(inbox), others(key, inbox, case.inboxes));
        passed.push(Passed { station: "inbox", what, at: inbox.settled_at });
    }
    let mut open: Vec<&TracedInbox> =
        case.message.inboxes.iter().filter(|inbox| !is_handled(inbox)).collect();
    open.sort_by_key(|inbox| gravity(&inbox.status));
    let found =
        open.first().map(|inbox| held(key, inbox, inbox.database.as_ref().unwrap_or(database), case.inboxes));
    let running = || case.inboxes.running.iter().find(|running| running.key == key).map(at_work);
    let end = found.or_else(running)?;
    // An attempt that is overdue waits for its consumer.
    let is_due = open.first().is_some_and(|inbox| is_overdue(inbox, case));
    if is_due {
        let behind = stream::judge(case, passed);
        if behind.outcome == Outcome::Held {
            return Some(behind);
        }
        if let Some(found) = stream::left_alone(case) {
            return Some(found);
        }
    } else {
        stream::note(case, passed);
    }
    Some(end)
}

/// The end of a key whose message is in none of the databases.
pub(super) fn of_lone(traced: &TracedKey, database: &String, inboxes: &Inboxes) -> End {
    let inbox = &traced.inbox;
    match is_handled(inbox) {
        true => {
            let at = inbox.settled_at.map(|at| format!(" at {}", text(at))).unwrap_or_default();
            if inbox.request.as_ref().is_some_and(|request| request.status.is_none()) {
                let what = format!(
                    "{} has no response for the HTTP request with this key: its handler ended the transaction by itself{at}, \
                     so a part of the request may be done; a repeated one is answered with 410",
                    inbox.scope
                );
                return End::new("end", Outcome::Done, what);
            }
            let whose = match inbox.request.as_ref().and_then(|request| request.status) {
                Some(status) => format!("it is the key of an HTTP request, answered with {status}"),
                None if traced.key.contains(":oncebox-edit-") => "it is an edit of a dead letter".to_owned(),
                None => "its message is from another database".to_owned(),
            };
            let what = format!("{}{at}; {whose}{}", ended(inbox), others(&traced.key, inbox, inboxes));
            End::new("end", Outcome::Done, what)
        }
        false => held(&traced.key, inbox, database, inboxes),
    }
}

/// Whether the inbox has handled it, or an edit of it, or is about to handle the edit.
fn is_handled(inbox: &TracedInbox) -> bool {
    ["completed", "rejected", "edited"].contains(&inbox.status.as_str())
}

fn ended(inbox: &TracedInbox) -> String {
    match inbox.status.as_str() {
        "edited" => format!("an edit came in its place in {}", inbox.scope),
        status => format!("{status} by {}", inbox.scope),
    }
}

/// The gravest first.
fn gravity(status: &str) -> usize {
    const ORDER: [&str; 7] = ["dead", "unknown", "failing", "snoozed", "open", "leased", "behind"];
    ORDER.iter().position(|known| *known == status).unwrap_or(ORDER.len())
}

/// Whether its time has come, by the database's clock.
fn is_overdue(inbox: &TracedInbox, case: &Case<'_>) -> bool {
    let next = match inbox.status.as_str() {
        "failing" | "unknown" | "leased" => inbox
            .lease
            .as_ref()
            .and_then(|lease| lease.until)
            .or(inbox.failure.as_ref().and_then(|failure| failure.next_at)),
        _ => None,
    };
    next.zip(case.status().at).is_some_and(|(next, now)| next <= now)
}

fn of(inbox: &TracedInbox) -> String {
    let tenant = if inbox.tenant.is_empty() { String::new() } else { format!(" of tenant {}", inbox.tenant) };
    let database = inbox.database.as_ref().map(|database| format!(" in {database}")).unwrap_or_default();
    tenant + &database
}

fn held(key: &str, inbox: &TracedInbox, database: &String, inboxes: &Inboxes) -> End {
    let scope = inbox.scope.as_str();
    let who = format!("the inbox of {scope}{}", of(inbox));
    let effects = effects(&inbox.effects);
    let end = match inbox.status.as_str() {
        "dead" => dead(key, inbox, &who, inboxes),
        "snoozed" => snoozed(key, inbox, &who),
        "leased" => leased(inbox, &who),
        "behind" => behind(inbox, &who, inboxes),
        "unknown" => {
            let next = inbox.lease.as_ref().and_then(|lease| lease.until);
            let next =
                next.map(|at| format!("; {who} may look again from {} on", text(at))).unwrap_or_default();
            let reason = inbox.lease.as_ref().and_then(|lease| lease.reason.clone());
            let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
            let what = format!("an effect outside the database may have happened{effects}{reason}{next}");
            let remedy = Remedy::words(
                "none is needed while a process of this inbox runs: its next attempt finds out",
            );
            return End::held("effect", what, remedy.at(Some(database)));
        }
        _ => failing(key, inbox, &who),
    };
    let remedy = end.remedy.map(|remedy| remedy.at(Some(database)));
    End { what: end.what + &effects, remedy, ..end }
}

/// The effects that have begun and not ended.
fn effects(all: &[TracedEffect]) -> String {
    let open = all.iter().filter(|effect| effect.state == "started");
    let open = open.map(|effect| format!("{} began at {}", effect.step, text(effect.started_at)));
    let open: Vec<String> = open.collect();
    if open.is_empty() { String::new() } else { format!("; open effects: {}", open.join(", ")) }
}

/// The letters of a key in an inbox, the newest first.
fn letters<'a>(
    key: &'a str,
    inbox: &'a TracedInbox,
    inboxes: &'a Inboxes,
) -> impl Iterator<Item = &'a Letter> {
    inboxes.letters.iter().filter(move |letter| {
        letter.key == key && letter.scope == inbox.scope && letter.tenant == inbox.tenant
    })
}

/// The letters of other messages that used the key too.
fn others(key: &str, inbox: &TracedInbox, inboxes: &Inboxes) -> String {
    let others: Vec<String> = letters(key, inbox, inboxes)
        .filter(|letter| letter.is_other)
        .map(|letter| letter.id.to_string())
        .collect();
    match &others[..] {
        [] => String::new(),
        [id] => format!(
            "; dead letter {id} is of another message with this key, and dies at each retry: enqueue it under a key of its own, \
             and discard the letter"
        ),
        ids => format!(
            "; dead letters {} are of other messages with this key, and die at each retry: enqueue them under keys of their own, \
             and discard the letters",
            ids.join(", ")
        ),
    }
}

fn dead(key: &str, inbox: &TracedInbox, who: &str, inboxes: &Inboxes) -> End {
    let letter = letters(key, inbox, inboxes).find(|letter| !letter.is_other);
    let others = others(key, inbox, inboxes);
    let at = inbox.settled_at.map(|at| format!(" at {}", text(at))).unwrap_or_default();
    match letter {
        Some(letter) if is_refused(&letter.scope, &letter.reason) => refused(key, letter, who),
        Some(letter) => {
            let count = counted(letter.deliveries, "delivery").replace("deliverys", "deliveries");
            let what = format!("{who} gave it up{at}, after {count}: {}{others}", letter.reason);
            let words = "mend the cause, then have it handled again";
            let id = letter.id.to_string();
            End::held("inbox", what, Remedy::action(words, Verb::RetryLetters, &[("id", &id)]))
        }
        None => {
            let what = format!(
                "{who} gave it up{at}, and its dead letter was discarded, or cannot be read by this role{others}"
            );
            let remedy = Remedy::words(
                "if it was discarded within the last day, `oncebox undo` brings it back, with the id in the audit; else have \
                 its producer enqueue it again, under another key",
            );
            End { remedy: Some(remedy), ..End::new("inbox", Outcome::GivenUp, what) }
        }
    }
}

/// An answer that its orchestrator refused is refused each time, so only its participant can help.
fn refused(key: &str, letter: &Letter, who: &str) -> End {
    let look = match saga_of_answer(key) {
        Some(saga) => format!("oncebox saga show {}", quoted(saga)),
        None => "oncebox saga list --state stuck".to_owned(),
    };
    End::held(
        "inbox",
        format!("{who} refused it: {}", letter.reason),
        Remedy {
            what: "mend the participant. The saga passes over this answer, also if it comes again, and goes on at the deadline \
                   of the step; if it is stuck then, `oncebox saga retry` asks for another attempt. See how it stands"
                .to_owned(),
            command: Some(look),
            ..Remedy::default()
        },
    )
}

fn snoozed(key: &str, inbox: &TracedInbox, who: &str) -> End {
    let (mut until, mut more) = (String::new(), String::new());
    if let Some(snooze) = &inbox.snooze {
        until = snooze.until.map(text).unwrap_or_default();
        more =
            format!(" ({} since {}): {}", counted(snooze.times, "time"), text(snooze.since), snooze.reason);
    }
    let what = format!("{who} has snoozed it until {until}{more}");
    let words =
        format!("none is needed: it is delivered again at {until}; to have a copy of it handled at once");
    End::held("inbox", what, Remedy::action(words, Verb::Replay, &[("key", key)]))
}

fn leased(inbox: &TracedInbox, who: &str) -> End {
    let Some(TracedLease { owner, until, since, attempts, is_over, .. }) = &inbox.lease else {
        return End::new("inbox", Outcome::OnItsWay, format!("{who} has claimed it"));
    };
    let until = until.map(text).unwrap_or_default();
    let owner = owner.as_deref().unwrap_or("?");
    if *is_over {
        let what = format!(
            "{who} worked on it since {}, in attempt {attempts}: the lease of process {owner} is over since {until}, and no \
             process has claimed it again: that one is suspended, or has died",
            text(*since)
        );
        let words = "none is needed while a process of this inbox runs, which claims it when the message is delivered again";
        return End::held("inbox", what, Remedy::words(words));
    }
    let what = format!(
        "{who} works on it since {}, in attempt {attempts}: process {owner} has the lease until {until}; if it dies, another \
         takes over then",
        text(*since)
    );
    End::new("inbox", Outcome::OnItsWay, what)
}

fn behind(inbox: &TracedInbox, who: &str, inboxes: &Inboxes) -> End {
    let Some(line) = &inbox.line else {
        return End::new(
            "inbox",
            Outcome::OnItsWay,
            format!("{who} keeps it behind others of its ordering key"),
        );
    };
    let (name, since) = (&line.ordering_key, text(line.since));
    if line.is_due {
        let what = format!("{who} is to run it since {since}, as the next of ordering key {name}");
        let remedy = Remedy::words("none is needed while its consumer runs, which looks every second");
        return End::held("inbox", what, remedy);
    }
    let ahead = match line.ahead {
        0 => String::new(),
        ahead => format!(", with {} before it", counted(ahead, "message")),
    };
    let Some(letter) = line.letter else {
        let what = format!(
            "{who} keeps it in the line of ordering key {name} since {since}{ahead}: the line goes on"
        );
        return End::new("inbox", Outcome::OnItsWay, what);
    };
    let head = line.letter_key.as_deref().map(|key| format!(" (key {key})")).unwrap_or_default();
    let reason = line.reason.as_deref().unwrap_or_default();
    let what = format!(
        "{who} keeps it behind dead letter {letter}{head} of ordering key {name} since {since}{ahead}: {reason}"
    );
    let follow = "those behind it follow in their order";
    if inboxes.letters.iter().any(|one| one.id == letter && one.is_other) {
        let words = format!(
            "its inbox knows the key of that letter by another message, so it dies at each retry: enqueue it under a key of its \
             own, then `oncebox inbox dead discard --id {letter}`: {follow}"
        );
        return End::held("inbox", what, Remedy::words(words));
    }
    let words = format!("mend the cause, then have that letter handled again, or discard it: {follow}");
    End::held("inbox", what, Remedy::action(words, Verb::RetryLetters, &[("id", &letter.to_string())]))
}

fn failing(key: &str, inbox: &TracedInbox, who: &str) -> End {
    let what = match (&inbox.failure, &inbox.lease) {
        (Some(failure), _) => {
            let next = failure
                .next_at
                .map(|at| format!("; it is delivered again at {}", text(at)))
                .unwrap_or_default();
            format!(
                "{who} failed it {}, last at {}: {}{next}",
                counted(failure.failures, "time"),
                text(failure.failed_at),
                failure.reason
            )
        }
        (None, Some(lease)) => {
            let reason = lease.reason.as_deref().unwrap_or("unknown");
            let next = lease
                .until
                .map(|at| format!("; it is claimed again from {} on", text(at)))
                .unwrap_or_default();
            format!("{who} failed it in attempt {}: {reason}{next}", lease.attempts)
        }
        (None, None) => format!("{who} remembers effects of an earlier attempt at it"),
    };
    if inbox.failure.is_none() {
        let words = "mend the cause; its consumer tries it again by itself";
        return End::held("inbox", what, Remedy::words(words));
    }
    let selects = [("key", key), ("scope", inbox.scope.as_str())];
    let words = "mend the cause; its consumer tries it again by itself, or at once";
    End::held("inbox", what, Remedy::action(words, Verb::RetryFailing, &selects))
}

/// A handler in a transaction leaves no row while it runs.
fn at_work(running: &Running) -> End {
    let Running { scope, pid, application_name, seconds, .. } = running;
    let name = application_name.as_ref().filter(|name| !name.is_empty());
    let name = name.map(|name| format!(" ({name})")).unwrap_or_default();
    let since =
        seconds.map(|seconds| format!(", its transaction open for {seconds:.0} s")).unwrap_or_default();
    End::new("inbox", Outcome::OnItsWay, format!("the handler of {scope} runs: pid {pid}{name}{since}"))
}

/// The end of a saga that goes on; `None` for one that has finished.
pub(super) fn of_saga(progress: &SagaProgress, unled: &[SagasUnled]) -> Option<End> {
    let saga = &progress.saga;
    if saga.finished_at.is_some() {
        return None;
    }
    let is_of = |one: &&SagasUnled| one.saga_type == saga.saga_type && one.version == saga.version;
    if let Some(unled) = unled.iter().find(is_of) {
        return Some(End::held("saga", unled.what(), Remedy::of_text(unled.remedy())));
    }
    let reason = saga.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    let what = format!("the saga {} is {}{reason}", saga.saga_type, saga.state);
    if !["stuck", "quarantined"].contains(&saga.state.as_str()) {
        let waits =
            progress.steps.iter().filter(|step| step.answered_at.is_none()).map(|step| step.step.as_str());
        let waits: Vec<&str> = waits.collect();
        let more =
            if waits.is_empty() { String::new() } else { format!(", and waits for {}", waits.join(", ")) };
        return Some(End::new("saga", Outcome::OnItsWay, what + &more));
    }
    let words = "mend the cause, then have it go on";
    Some(End::held("saga", what, Remedy::action(words, Verb::RetrySagas, &[("key", &saga.key)])))
}
