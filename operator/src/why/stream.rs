//! The way from the stream to its consumers.

use oncebox_connect::words::counted;
use oncebox_relay::facts::covers;

use super::{Case, End, Outcome, Passed, Remedy, copy::Stored, outbox::survey_of};
use crate::{
    Diagnosis, Time, Verb,
    consumption::{consumption, left_alone as left_alone_of, of_consumer},
    obstacles::obstacles,
    shell::quoted,
    status::findings::{lost, nats_away},
    survey::{ConsumerStatus, StreamStatus, Survey},
};

/// The end of a message that a stream has stored, as far as its consumers know.
pub(super) fn judge(case: &Case<'_>, passed: &mut Vec<Passed>) -> End {
    let subject = &case.message.subject;
    let Some(survey) = survey_of(case) else { return unasked(case, passed) };
    let is_handled = passed.iter().any(|one| one.station == "inbox");
    // Once an inbox has handled it, it does not matter whether the stream still has it.
    if let Some(found) = unstored(case, passed).filter(|_| !is_handled) {
        return found;
    }
    let Some(stream) = survey.streams.first() else {
        let recent = [case.look.subject(subject)];
        let found = obstacles(case.expected, &survey, &recent).into_iter().next();
        return found.filter(|_| !is_handled).map_or_else(
            || unasked(case, passed),
            |found| {
                let what = format!("a stream had stored it, and is gone: {}", found.what);
                End::held("stream", what, Remedy::of_text(found.remedy))
            },
        );
    };
    let recent = [case.look.subject(subject)];
    let closed = obstacles(case.expected, &survey, &recent).into_iter();
    let mut closed = closed.filter(|found| found.check == "stream-closed" && !stream.has_leader);
    if let Some(found) = closed.next().filter(|_| !is_handled) {
        return End::obstacle("stream", found);
    }
    let of_stream = |found: &Diagnosis| found.check.ends_with("-unconsumed");
    if let Some(found) = consumption(&survey, &recent).into_iter().find(of_stream).filter(|_| !is_handled) {
        return End::obstacle("stream", found);
    }
    let takes = |consumer: &&ConsumerStatus| {
        consumer.filters.is_empty() || consumer.filters.iter().any(|filter| covers(filter, subject))
    };
    let consumers: Vec<&ConsumerStatus> = survey.consumers.iter().filter(takes).collect();
    let stored = case.look.stored.get(&(case.message.lane, case.message.id));
    // Where a copy stands that was sent again is not known.
    let is_only = case.message.replay.is_none();
    if matches!(stored, Some(Stored::LetGo { .. })) && !is_handled && is_only && !stream.deletes_acknowledged
    {
        return dropped(case, stream);
    }
    if consumers.is_empty() && !is_handled {
        return none_takes(&survey, &stream.name, subject);
    }
    at_consumers(case, &survey, &consumers, passed)
}

/// For a message whose next attempt is overdue: the consumer from which no client pulls it.
pub(super) fn left_alone(case: &Case<'_>) -> Option<End> {
    let survey = survey_of(case)?;
    let takes = |consumer: &&ConsumerStatus| {
        let subject = &case.message.subject;
        consumer.filters.is_empty() || consumer.filters.iter().any(|filter| covers(filter, subject))
    };
    let found = survey.consumers.iter().filter(takes).find_map(left_alone_of);
    found.map(|found| End::obstacle("consumer", found))
}

/// Without NATS only inboxes know the way of a message after the outbox.
fn unasked(case: &Case<'_>, passed: &[Passed]) -> End {
    if let Some(handled) = passed.iter().find(|one| one.station == "inbox") {
        let what = format!(
            "{}; whether other consumers take it is not known, since no stream was asked",
            handled.what
        );
        return End::new("end", Outcome::Done, what);
    }
    match &case.status().nats_problem {
        Some(problem) => {
            let found = nats_away(problem);
            let remedy = Remedy::of_text(found.remedy);
            let what = format!("a stream has stored it; how its consumers stand is not known: {problem}");
            End { remedy: Some(remedy), ..End::new("nats", Outcome::Unknown, what) }
        }
        None => {
            let what = "a stream has stored it, and no inbox of the databases that were asked has its key; how its consumers \
                        stand is not known, since NATS was not asked";
            let remedy = Remedy::words("set NATS_URL, or --nats-url, and ask again");
            End { remedy: Some(remedy), ..End::new("stream", Outcome::Unknown, what) }
        }
    }
}

/// The end when the stream has the message no more; else notes where it has it.
fn unstored(case: &Case<'_>, passed: &mut Vec<Passed>) -> Option<End> {
    let (what, at) = match case.look.stored.get(&(case.message.lane, case.message.id)) {
        Some(Stored::At { stream, sequence, at }) => {
            (format!("stored in stream {stream} at sequence {sequence}"), Some(Time(*at)))
        }
        Some(Stored::UpTo { stream, sequence }) => {
            (format!("stored in stream {stream}, at or below sequence {sequence}"), None)
        }
        Some(Stored::LetGo { stream }) => (
            format!(
                "stored in stream {stream}, which has it no more: it was consumed, or made place for newer ones"
            ),
            None,
        ),
        Some(Stored::Missing { stream }) => return Some(missing(case, stream)),
        Some(Stored::Unasked { problem }) => {
            (format!("acknowledged by a stream; where it has it is not known: {problem}"), None)
        }
        None => ("acknowledged by a stream".to_owned(), None),
    };
    passed.push(Passed { station: "stream", what, at });
    None
}

/// Notes where the stream has it, for a message that an inbox knows.
pub(super) fn note(case: &Case<'_>, passed: &mut Vec<Passed>) {
    // An inbox has it, so that it does not matter whether its stream still does.
    let _ = unstored(case, passed);
}

fn missing(case: &Case<'_>, stream: &str) -> End {
    let loss = case.status().losses.iter().find(|loss| loss.stream == stream && loss.is_reported());
    if let Some(loss) = loss {
        let found = lost(loss);
        let remedy = Remedy::action("have it sent again", Verb::Resend, &[("stream", stream)]);
        return End::held("stream", found.what, remedy);
    }
    let remedy = Remedy::of_text(format!(
        "have it sent again: `oncebox outbox verify --stream {} --resend`; relays do so by themselves for what a stream loses at \
         its end",
        quoted(stream)
    ));
    End::held(
        "stream",
        format!("stream {stream} acknowledged it, and does not have it: it was deleted, or lost"),
        remedy,
    )
}

/// A stream that keeps acknowledged messages has let go of it by a limit, perhaps before a consumer
/// had it.
fn dropped(case: &Case<'_>, stream: &StreamStatus) -> End {
    let what = format!(
        "stream {} has it no more: it made place for newer ones, or was too old; no inbox of the databases that were asked has \
         its key",
        stream.name
    );
    let again = match stream.discards_new {
        true => String::new(),
        false => format!(
            "; that a full stream refuses messages in place of dropping them: `nats stream edit {} --discard new --force`",
            quoted(&stream.name)
        ),
    };

    let words = format!("if no consumer has handled it, have a copy sent{again}");
    let remedy = Remedy::action(words, Verb::Replay, &[("key", &case.message.key)]);
    End { remedy: Some(remedy), ..End::new("stream", Outcome::Unknown, what) }
}

fn none_takes(survey: &Survey, stream: &str, subject: &str) -> End {
    // A consumer whose filter matches nothing of the stream was perhaps meant.
    let meant = survey.consumers.iter().find_map(|consumer| of_consumer(survey, consumer));
    if let Some(found) = meant.filter(|found| found.check == "consumer-filter") {
        return End::obstacle("consumer", found);
    }
    let what = format!("stream {stream} has it, and no consumer of the stream takes the subject {subject}");
    End::held(
        "consumer",
        what,
        Remedy::words("start the service that handles it, or have its consumer take this subject"),
    )
}

/// The consumer that has not acknowledged it, the one with an obstacle first.
fn at_consumers(
    case: &Case<'_>,
    survey: &Survey,
    consumers: &[&ConsumerStatus],
    passed: &mut Vec<Passed>,
) -> End {
    let sequence = match case.look.stored.get(&(case.message.lane, case.message.id)) {
        Some(Stored::At { sequence, .. } | Stored::UpTo { sequence, .. }) => Some(*sequence),
        _ => None,
    };
    let has_it = |consumer: &ConsumerStatus| match sequence {
        Some(sequence) => {
            let all = consumer.delivered_sequence >= sequence && consumer.unacknowledged == 0;
            all || consumer.acknowledged_sequence >= sequence
        }
        None => consumer.pending + consumer.unacknowledged == 0,
    };
    let (done, open): (Vec<&ConsumerStatus>, Vec<&ConsumerStatus>) =
        consumers.iter().copied().partition(|consumer| has_it(consumer));
    let names =
        |all: &[&ConsumerStatus]| all.iter().map(|one| one.name.as_str()).collect::<Vec<_>>().join(", ");
    if !done.is_empty() {
        passed.push(Passed {
            station: "consumer",
            what: format!("acknowledged by {}", names(&done)),
            at: None,
        });
    }
    let Some(first) = open.first() else {
        let is_handled = passed.iter().any(|one| one.station == "inbox");
        let more = if is_handled { "" } else { "; no inbox of the databases that were asked has its key" };
        return End::new(
            "end",
            Outcome::Done,
            format!("each consumer that takes it has acknowledged it{more}"),
        );
    };
    if let Some(found) = open.iter().find_map(|consumer| of_consumer(survey, consumer)) {
        return End::obstacle("consumer", found);
    }
    let ConsumerStatus { name, pending, unacknowledged, redelivered, ack_wait_seconds, .. } = first;
    let is_delivered = sequence.is_some_and(|sequence| first.delivered_sequence >= sequence);
    let what = if is_delivered {
        format!(
            "consumer {name} has delivered it, and it may be among its {} that {} not acknowledged ({redelivered} delivered \
             again); JetStream delivers it again {ack_wait_seconds:.0} s after a delivery without an answer",
            counted(unacknowledged, "message"),
            if *unacknowledged == 1 { "is" } else { "are" }
        )
    } else {
        format!(
            "consumer {name} has not delivered it yet: {} wait, {unacknowledged} are with its handlers",
            counted(pending, "message")
        )
    };
    End::new("consumer", Outcome::OnItsWay, what)
}
