//! The actions, each with its words, its fields and its consequence.

use oncebox_connect::words::counted;
use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::Serialize;

use crate::html::words::number;

/// An action on one kind of things.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verb {
    RetryDead,
    DiscardDead,
    EditDead,
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
struct Words {
    verb: Verb,
    /// In addresses: on which kind, and which action.
    names: [&'static str; 2],
    command: &'static str,
    past: &'static str,
    things: &'static str,
    selectors: &'static [&'static str],
    /// Fields that say how.
    others: &'static [&'static str],
    consequence: &'static str,
}

const OF_MESSAGES: &[&str] = &["id", "key", "subject", "reason", "reason-is", "subject-is", "ordering-key"];
const OF_LETTERS: &[&str] = &["id", "key", "scope", "subject", "reason", "reason-is", "subject-is"];
const OF_FAILING: &[&str] = OF_LETTERS;
const OF_SAGAS: &[&str] = &["key", "type", "state"];
const OF_PAUSES: &[&str] = &["subject", "stream", "ordering-key"];

const ALL: [Words; 22] = [
    Words {
        verb: Verb::RetryDead,
        names: ["dead", "retry"],
        command: "oncebox outbox dead retry",
        past: "retried",
        things: "messages",
        selectors: OF_MESSAGES,
        others: &["canary"],
        consequence: "Each message becomes due again, with no attempt spent; the messages behind it wait until it is \
                      stored.",
    },
    Words {
        verb: Verb::DiscardDead,
        names: ["dead", "discard"],
        command: "oncebox outbox dead discard",
        past: "discarded",
        things: "messages",
        selectors: OF_MESSAGES,
        others: &[],
        consequence: "No relay sends these messages; the messages behind them go on. For a day, undo brings them back, \
                      unless a later message of their ordering key was sent.",
    },
    Words {
        verb: Verb::EditDead,
        names: ["dead", "edit"],
        command: "oncebox outbox dead edit",
        past: "edited",
        things: "message",
        selectors: &["key"],
        others: &["payload", "header", "remove-header"],
        consequence: "The message is due again, changed, in its place and under a key of its own. Until it is sent, for a day, \
                      undo takes the change back.",
    },
    Words {
        verb: Verb::DiscardParked,
        names: ["parked", "discard"],
        command: "oncebox outbox parked discard",
        past: "discarded",
        things: "messages",
        selectors: OF_MESSAGES,
        others: &[],
        consequence: "No relay tries these messages again; the messages behind them go on. For a day, undo brings them \
                      back, unless a later message of their ordering key was sent.",
    },
    Words {
        verb: Verb::CancelReplays,
        names: ["replays", "cancel"],
        command: "oncebox outbox replay cancel",
        past: "cancelled",
        things: "replays",
        selectors: &["id", "key", "subject", "reason", "ordering-key", "request"],
        others: &[],
        consequence: "These copies are not sent. The messages were stored before, and can be replayed again.",
    },
    Words {
        verb: Verb::RetryLetters,
        names: ["dead-letters", "retry"],
        command: "oncebox inbox dead retry",
        past: "retried",
        things: "dead letters",
        selectors: OF_LETTERS,
        others: &["canary"],
        consequence: "Each letter goes to the end of its stream, or runs in its line, and its key is free again.",
    },
    Words {
        verb: Verb::DiscardLetters,
        names: ["dead-letters", "discard"],
        command: "oncebox inbox dead discard",
        past: "discarded",
        things: "dead letters",
        selectors: OF_LETTERS,
        others: &[],
        consequence: "The letters are taken out; their keys stay settled as dead. For a day, undo brings them back.",
    },
    Words {
        verb: Verb::EditLetter,
        names: ["dead-letters", "edit"],
        command: "oncebox inbox dead edit",
        past: "edited",
        things: "dead letter",
        selectors: &["id"],
        others: &["payload", "header", "remove-header"],
        consequence: "The letter goes back to its stream, changed, under a key of its own. Inboxes that have handled the old \
                      message do not handle it again.",
    },
    Words {
        verb: Verb::RetryFailing,
        names: ["failing", "retry"],
        command: "oncebox inbox failing retry",
        past: "retried",
        things: "messages",
        selectors: OF_FAILING,
        others: &[],
        consequence: "A copy of each message goes to the end of its stream; the first of the two that succeeds counts.",
    },
    Words {
        verb: Verb::BuryFailing,
        names: ["failing", "bury"],
        command: "oncebox inbox failing bury",
        past: "buried",
        things: "messages",
        selectors: OF_FAILING,
        others: &[],
        consequence: "Each message becomes a dead letter of its inbox. A message that its stream has no more is \
                      forgotten.",
    },
    Words {
        verb: Verb::CancelDelayed,
        names: ["delayed", "cancel"],
        command: "oncebox outbox delayed cancel",
        past: "cancelled",
        things: "messages",
        selectors: &["key", "subject", "ordering-key"],
        others: &[],
        consequence: "These messages are never sent. One that is due by then is neither cancelled nor counted.",
    },
    Words {
        verb: Verb::RetrySagas,
        names: ["sagas", "retry"],
        command: "oncebox saga retry",
        past: "retried",
        things: "sagas",
        selectors: OF_SAGAS,
        others: &["step"],
        consequence: "The orchestrator sends another attempt at each step that waits, under a key of its own; a saga in \
                      quarantine is read again.",
    },
    Words {
        verb: Verb::SkipStep,
        names: ["sagas", "skip"],
        command: "oncebox saga skip",
        past: "skipped a step of",
        things: "sagas",
        selectors: OF_SAGAS,
        others: &["step"],
        consequence: "The saga goes on as if the step were done, or undone: somebody has to have done it by hand.",
    },
    Words {
        verb: Verb::AbandonSagas,
        names: ["sagas", "abandon"],
        command: "oncebox saga abandon",
        past: "abandoned",
        things: "sagas",
        selectors: OF_SAGAS,
        others: &[],
        consequence: "The saga ends as it stands: nothing more is sent, nothing is undone. This cannot be undone.",
    },
    Words {
        verb: Verb::Replay,
        names: ["replays", "replay"],
        command: "oncebox outbox replay",
        past: "asked the relays to send again",
        things: "messages",
        selectors: &["key", "subject", "since", "until"],
        others: &["request"],
        consequence: "The relays send these settled messages again, with a broker id of their own and the same key: \
                      inboxes answer them as duplicates, other consumers handle them again.",
    },
    Words {
        verb: Verb::Resend,
        names: ["losses", "resend"],
        command: "oncebox outbox resend",
        past: "asked the relays to send again",
        things: "messages",
        selectors: &["stream"],
        others: &[],
        consequence: "The relays send again all that the stream may have lost. A message that it still has is answered \
                      as a duplicate within its window.",
    },
    Words {
        verb: Verb::Pause,
        names: ["pauses", "pause"],
        command: "oncebox outbox pause",
        past: "paused",
        things: "delivery",
        selectors: OF_PAUSES,
        others: &["for", "unseen"],
        consequence: "Relays send none of these messages until the end of the pause, or until somebody resumes them; \
                      all others go on.",
    },
    Words {
        verb: Verb::Throttle,
        names: ["pauses", "throttle"],
        command: "oncebox outbox throttle",
        past: "throttled",
        things: "delivery",
        selectors: OF_PAUSES,
        others: &["for", "unseen"],
        consequence: "Relays send so many of these messages a second, and no more; all others go on.",
    },
    Words {
        verb: Verb::Resume,
        names: ["pauses", "resume"],
        command: "oncebox outbox resume",
        past: "resumed",
        things: "delivery",
        selectors: OF_PAUSES,
        others: &[],
        consequence: "Relays send these messages again from their next pass on.",
    },
    Words {
        verb: Verb::Undo,
        names: ["audit", "undo"],
        command: "oncebox undo",
        past: "brought back",
        things: "rows",
        selectors: &["id"],
        others: &[],
        consequence: "All rows of this discard come back to where they were, or none does.",
    },
    Words {
        verb: Verb::StopCanary,
        names: ["canaries", "stop"],
        command: "oncebox canary stop",
        past: "stopped",
        things: "canary",
        selectors: &["id"],
        others: &[],
        consequence: "No more of its rows are retried. It can be continued for a week.",
    },
    Words {
        verb: Verb::ContinueCanary,
        names: ["canaries", "continue"],
        command: "oncebox canary continue",
        past: "continued",
        things: "canary",
        selectors: &["id"],
        others: &[],
        consequence: "The relays go on with its rest: one row first, then 10, 100 and all others.",
    },
];

impl Verb {
    /// The kinds, and the actions, each once.
    pub(crate) fn all_names() -> [BTreeSet<&'static str>; 2] {
        [0, 1].map(|part| ALL.iter().map(|words| words.names[part]).collect())
    }

    /// The fields that some action takes, each once.
    pub(crate) fn fields() -> BTreeSet<&'static str> {
        ALL.iter().flat_map(|words| words.selectors.iter().chain(words.others)).copied().collect()
    }

    pub(crate) fn of(kind: &str, action: &str) -> Option<Self> {
        ALL.iter().find(|words| words.names == [kind, action]).map(|words| words.verb)
    }

    fn all(self) -> &'static Words {
        ALL.iter().find(|words| words.verb == self).expect("a test looks for each of them")
    }

    pub(crate) fn names(self) -> [&'static str; 2] {
        self.all().names
    }

    /// `oncebox outbox dead retry`.
    pub(crate) fn command(self) -> &'static str {
        self.all().command
    }

    /// `outbox dead retry`.
    pub(crate) fn words(self) -> &'static str {
        self.command().trim_start_matches("oncebox ")
    }

    pub(crate) fn past(self) -> &'static str {
        self.all().past
    }

    /// `Retry messages`.
    pub(crate) fn title(self) -> String {
        let [_, action] = self.names();
        let (first, rest) = action.split_at(1);
        format!("{}{rest} {}", first.to_uppercase(), self.things())
    }

    pub(crate) fn things(self) -> &'static str {
        self.all().things
    }

    /// `1 dead letter`, `2 dead letters`.
    pub(crate) fn counted(self, count: u64) -> String {
        let number = number(i64::try_from(count).unwrap_or(i64::MAX));
        counted(number, self.things().trim_end_matches('s'))
    }

    pub(crate) fn consequence(self) -> &'static str {
        self.all().consequence
    }

    /// Whether it destroys something: its word is typed before it is done, as on the command line.
    pub(crate) fn is_grave(self) -> bool {
        ["discard", "skip", "abandon", "bury", "cancel", "edit"].contains(&self.names()[1])
    }

    /// Whether it changes rows that can be shown first, and nothing else.
    pub(crate) fn has_rows(self) -> bool {
        !matches!(self, Self::Pause | Self::Throttle | Self::Resume) && !self.is_of_canary()
    }

    pub(crate) fn is_of_canary(self) -> bool {
        matches!(self, Self::StopCanary | Self::ContinueCanary)
    }

    /// Whether its command takes an id, or a key, which is no option, and means no other rows.
    pub(super) fn takes_id_alone(self) -> bool {
        self == Self::Undo || self.is_of_canary() || self.is_edit()
    }

    /// Whether a limit of changes a second means something.
    pub(crate) fn has_rate(self) -> bool {
        let is_at_once = matches!(
            self,
            Self::RetrySagas | Self::SkipStep | Self::AbandonSagas | Self::Resend | Self::Undo
        ) || self.is_edit();
        (self.has_rows() && !is_at_once) || self == Self::Throttle
    }

    pub(super) fn selects(self, field: &str) -> bool {
        self.all().selectors.contains(&field)
    }

    pub(crate) fn takes(self, field: &str) -> bool {
        self.selects(field) || self.all().others.contains(&field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_action_is_found_by_its_names_and_says_its_consequence() {
        for words in &ALL {
            let [kind, action] = words.names;
            assert_eq!(Verb::of(kind, action), Some(words.verb));
            assert_eq!(words.verb.all().names, words.names);
            assert!(words.consequence.len() > 30 && words.command.ends_with(action), "{action}");
        }
    }
}
