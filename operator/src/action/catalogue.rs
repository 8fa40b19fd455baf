//! The catalogue of actions: each with its words, its options, its consequence and examples.

use std::ops::Deref;

use schemars::JsonSchema;
use serde::Serialize;

use super::{
    entry::{Entry, action},
    fields::{ASKED_AS, CANARY, CHANGE, LASTS, ONE_STEP, SETTLED_SINCE, STEP},
    kind::Kind,
};

/// An action on one kind of things.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[expect(clippy::exhaustive_enums, reason = "a surface that leaves one out does not compile")]
#[expect(missing_docs, reason = "the catalogue says of each what it does")]
pub enum Verb {
    RetryDead,
    DiscardDead,
    EditDead,
    RetryParked,
    DiscardParked,
    CancelReplays,
    RetryLetters,
    DiscardLetters,
    EditLetter,
    RetryFailing,
    BuryFailing,
    CancelDelayed,
    RetrySagas,
    SkipStep,
    AbandonSagas,
    Replay,
    Resend,
    Pause,
    Throttle,
    Resume,
    Undo,
    StopCanary,
    ContinueCanary,
}

/// All about one of them.
pub type Action = Entry<Verb>;

/// In the order of the help.
pub(super) const ALL: [Action; 23] = [
    action(Verb::RetryDead, Kind::Dead, "outbox dead retry", "retried", "messages")
        .about("Make dead messages due again, with no attempt spent")
        .consequence(
            "Each message becomes due again, with no attempt spent; the messages behind it wait until it \
             is stored.",
        )
        .with(CANARY)
        .examples(&[
            ("oncebox outbox dead retry --reason 'no stream' --dry-run", "How many would be due again"),
            (
                "oncebox outbox dead retry --all --canary --within 1h",
                "One first; an hour for each to be stored",
            ),
        ]),
    action(Verb::EditDead, Kind::Dead, "outbox dead edit", "edited", "message")
        .about("Change a dead message, and make it due under a key of its own")
        .consequence(
            "The message is due again, changed, in its place and under a key of its own. Until it is \
             sent, for a day, undo takes the change back.",
        )
        .with(CHANGE)
        .examples(&[
            (
                "oncebox outbox dead edit order-4711:charge --payload fixed.json --note INC-7",
                "Send it with another payload, under a key of its own; --dry-run shows old and new",
            ),
        ]),
    action(Verb::DiscardDead, Kind::Dead, "outbox dead discard", "discarded", "messages")
        .about("Give dead messages up for good; what waits behind them goes on")
        .consequence(
            "No relay sends these messages; the messages behind them go on. For a day, undo brings them \
             back, unless a later message of their ordering key was sent.",
        )
        .examples(&[
            (
                "oncebox outbox dead discard --key order-4711:process-payment --note INC-7",
                "Never publish it; what waits behind it goes on",
            ),
        ]),
    action(Verb::RetryParked, Kind::Parked, "outbox parked retry", "asked the relays to try again", "messages")
        .about("Have relays try parked messages again now, not after their pause")
        .more(
            "Mend the cause first: a try that fails counts as an attempt, and the next pause is longer. \
             Messages that wait behind another of their ordering key go on when that is stored.",
        )
        .consequence(
            "Relays try these messages at once. A try that fails counts as an attempt. Messages that wait \
             behind them go on when they are stored.",
        )
        .examples(&[
            (
                "oncebox outbox parked retry --reason 'permissions' --by mina --note INC-7",
                "The permission is back: try them now",
            ),
        ]),
    action(Verb::DiscardParked, Kind::Parked, "outbox parked discard", "discarded", "messages")
        .about("Give parked messages up for good, before they die; what waits behind them goes on")
        .consequence(
            "No relay tries these messages again; the messages behind them go on. For a day, undo brings \
             them back, unless a later message of their ordering key was sent.",
        )
        .examples(&[
            (
                "oncebox outbox parked discard --key order-4711:process-payment",
                "Give it up before it is dead; what waits behind it goes on",
            ),
        ]),
    action(Verb::CancelReplays, Kind::Replays, "outbox replay cancel", "cancelled", "replays")
        .about("Give up replays that are still to be sent; what waits behind them goes on")
        .consequence(
            "These copies are not sent. The messages were stored before, and can be replayed again.",
        )
        .examples(&[
            ("oncebox outbox replay cancel --subject 'orders.>'", "Give them up"),
        ]),
    action(Verb::RetryLetters, Kind::Letters, "inbox dead retry", "retried", "dead letters")
        .about(
            "Have dead letters handled again: before those that wait behind them, or as new messages \
                of JetStream",
        )
        .consequence(
            "Each letter goes to the end of its stream, or runs in its line, and its key is free again.",
        )
        .with(CANARY)
        .examples(&[
            ("oncebox inbox dead retry --id 17", "Send it back to JetStream"),
            (
                "oncebox inbox dead retry --scope payment-service:charge --canary --by mina --note INC-7",
                "Retry one, then 10, 100 and the rest, until one fails again",
            ),
        ]),
    action(Verb::EditLetter, Kind::Letters, "inbox dead edit", "edited", "dead letter")
        .about("Change a dead letter, and have it handled under a key of its own")
        .consequence(
            "The letter goes back to its stream, changed, under a key of its own. Inboxes that have \
             handled the old message do not handle it again.",
        )
        .with(CHANGE)
        .examples(&[
            (
                "oncebox inbox dead edit 17 --payload fixed.json --header currency=EUR --note INC-7 --dry-run",
                "Show old and new, and what confirms it",
            ),
        ]),
    action(Verb::DiscardLetters, Kind::Letters, "inbox dead discard", "discarded", "dead letters")
        .about("Delete dead letters; their keys stay settled as dead, and those that wait behind them run")
        .consequence(
            "The letters are taken out; their keys stay settled as dead. For a day, undo brings them \
             back.",
        )
        .examples(&[
            ("oncebox inbox dead discard --id 17 --note INC-7", "Delete it"),
        ]),
    action(Verb::RetryFailing, Kind::Failing, "inbox failing retry", "retried", "messages")
        .about("Run failing messages now, not after their pause")
        .more(
            "Publishes a copy of each message at the end of its stream. The first of the two that \
               succeeds counts; the inbox answers the other as a duplicate. A key gets one copy for each \
               time that it fails: a message that is due already is left alone. A message with an ordering \
               key may still wait behind the original.",
        )
        .consequence(
            "A copy of each message goes to the end of its stream; the first of the two that succeeds \
             counts.",
        )
        .examples(&[
            ("oncebox inbox failing retry --reason 'does not exist' --dry-run", "How many would be run now"),
        ]),
    action(Verb::BuryFailing, Kind::Failing, "inbox failing bury", "buried", "messages")
        .about("Give failing messages up: each becomes a dead letter of its inbox")
        .more(
            "Fetches each message from its stream, so that the dead letter has all of it. A message \
               that the stream has no more is forgotten, since nobody delivers it again.",
        )
        .consequence(
            "Each message becomes a dead letter of its inbox. A message that its stream has no more is \
             forgotten.",
        )
        .examples(&[
            (
                "oncebox inbox failing bury --key order-4711:charge --note INC-7",
                "Give one up, as a dead letter",
            ),
        ]),
    action(Verb::CancelDelayed, Kind::Delayed, "outbox delayed cancel", "cancelled", "messages")
        .about("Give delayed messages up for good, before they are sent")
        .consequence(
            "These messages are never sent. One that is due by then is neither cancelled nor counted.",
        )
        .examples(&[
            ("oncebox outbox delayed cancel --key order-4711:remind", "Give one up before it is sent"),
        ]),
    action(Verb::RetrySagas, Kind::Sagas, "saga retry", "asked for another attempt of", "sagas")
        .about("Try again what waits for an operator; read again what is in quarantine")
        .consequence(
            "The orchestrator sends another attempt at each step that waits, under a key of its own; a \
             saga in quarantine is read again.",
        )
        .with(ONE_STEP)
        .examples(&[
            (
                "oncebox saga retry --type order --state stuck --dry-run",
                "How many would try again what waits",
            ),
        ]),
    action(Verb::SkipStep, Kind::Sagas, "saga skip", "asked to go on with", "sagas")
        .about(
            "Go on as if a step that waits, or put its saga aside, were done, or undone: somebody did \
                it by hand",
        )
        .consequence(
            "The saga goes on as if the step were done, or undone: somebody has to have done it by hand.",
        )
        .with(STEP)
        .examples(&[
            (
                "oncebox saga skip --key 4711:order --step ship --by mina --note INC-7",
                "Go on: somebody has sent the parcel by hand",
            ),
            (
                "oncebox saga skip --key 4711:order --step reserve --reply '{\"id\": \"r-7\"}'",
                "The same, with the reply that a later step needs",
            ),
        ]),
    action(Verb::AbandonSagas, Kind::Sagas, "saga abandon", "abandoned", "sagas")
        .about("Give sagas up as they stand: what is delayed is cancelled, nothing more is sent or undone")
        .consequence(
            "The saga ends as it stands: nothing more is sent, nothing is undone. This cannot be undone.",
        )
        .examples(&[
            ("oncebox saga abandon --key 4711:order --note INC-7", "Give one up as it stands"),
        ]),
    action(Verb::Replay, Kind::Settled, "outbox replay", "asked the relays to replay", "messages")
        .about(
            "Have the relays send settled messages again, with a broker id of their own and the same \
                key",
        )
        .consequence(
            "The relays send these settled messages again, with a broker id of their own and the same \
             key: inboxes answer them as duplicates, other consumers handle them again.",
        )
        .with(ASKED_AS)
        .examples(&[
            (
                "oncebox outbox replay --subject 'orders.>' --since 2030-01-31T08:00:00Z --until 2030-01-31T09:00:00Z",
                "Send an hour's messages again",
            ),
            ("oncebox outbox replay --key order-4711:process-payment", "Send one again"),
        ]),
    action(Verb::Resend, Kind::Losses, "outbox resend", "asked the relays to send again", "messages")
        .about("Have the relays send again what a stream lost after it had acknowledged it")
        .consequence(
            "The relays send again all that the stream may have lost. A message that it still has is \
             answered as a duplicate within its window.",
        )
        .with(SETTLED_SINCE)
        .examples(&[
            ("oncebox outbox resend --stream ORDERS --dry-run", "How many messages a stream may have lost"),
        ]),
    action(Verb::Pause, Kind::Pauses, "outbox pause", "paused", "delivery")
        .about("Send no messages of a subject, stream or ordering key for a while")
        .consequence(
            "Relays send none of these messages until the end of the pause, or until somebody resumes \
             them; all others go on.",
        )
        .with(LASTS)
        .examples(&[
            (
                "oncebox outbox pause --subject 'orders.>' --for 2h --by mina --note INC-7",
                "Send no orders for two hours; everything else goes on",
            ),
            ("oncebox outbox pause --stream ORDERS", "Send nothing to a stream, until it is resumed"),
        ]),
    action(Verb::Throttle, Kind::Pauses, "outbox throttle", "throttled", "delivery")
        .about("Send so many messages a second of a subject or stream")
        .consequence("Relays send so many of these messages a second, and no more; all others go on.")
        .with(LASTS)
        .examples(&[
            ("oncebox outbox throttle --subject 'mail.>' --rate 50", "Send 50 mails a second at most"),
        ]),
    action(Verb::Resume, Kind::Pauses, "outbox resume", "resumed", "delivery")
        .about("End a pause or a throttle")
        .consequence("Relays send these messages again from their next pass on.")
        .examples(&[
            ("oncebox outbox resume --subject 'orders.>'", "Go on"),
        ]),
    action(Verb::Undo, Kind::Audit, "undo", "brought back", "rows")
        .about(
            "Bring back all that a discard of the last day took out, or none of it; take an edit back \
                that was not sent",
        )
        .consequence("All rows of this discard come back to where they were, or none does.")
        .examples(&[
            ("oncebox undo 4711 --dry-run", "Which messages of a discard would come back, and which cannot"),
        ]),
    action(Verb::StopCanary, Kind::Canaries, "canary stop", "stopped", "canary")
        .about("Retry no more rows; of one that stopped by itself, give the rest up")
        .consequence("No more of its rows are retried. It can be continued for a week.")
        .examples(&[
            ("oncebox canary stop 3 --by mina", "Retry no more of its rows"),
        ]),
    action(Verb::ContinueCanary, Kind::Canaries, "canary continue", "continued", "canary")
        .about("Go on with the rest of one that has stopped, one row first")
        .consequence("The relays go on with its rest: one row first, then 10, 100 and all others.")
        .examples(&[
            ("oncebox canary continue 3 --by mina --note INC-7", "Go on with its rest, one row first"),
        ]),
];
/// A verb is its line of the catalogue.
impl Deref for Verb {
    type Target = Action;

    fn deref(&self) -> &Action {
        ALL.iter().find(|action| action.verb == *self).expect("a test looks for each of them")
    }
}
