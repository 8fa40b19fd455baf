//! The kinds of things that operators look at and act on.

use super::fields::{
    Field, OF_AUDIT, OF_CANARIES, OF_DELAYED, OF_FAILING, OF_LETTERS, OF_LOSSES, OF_MESSAGES, OF_PAUSES,
    OF_REPLAYS, OF_SAGAS, OF_SETTLED,
};

/// A kind of things.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// Messages of the outbox that are tried again, or that wait for another one of their ordering
    /// key.
    #[default]
    Parked,
    /// Messages that relays gave up.
    Dead,
    /// Replays that are still to be sent.
    Replays,
    /// Dead letters of inboxes.
    Letters,
    /// Messages that fail in an inbox.
    Failing,
    /// Messages that wait for their time.
    Delayed,
    /// Sagas.
    Sagas,
    /// Settled messages, which can be replayed.
    Settled,
    /// Losses of streams.
    Losses,
    /// Pauses and throttles.
    Pauses,
    /// Rows of the audit.
    Audit,
    /// Retries in steps.
    Canaries,
}

/// About a kind: its name in addresses and in statements, the words before the action in commands,
/// one of its things, its things at the beginning of a sentence, and its options.
type About = (&'static str, &'static str, &'static str, &'static str, &'static [Field]);

impl Kind {
    fn about(self) -> About {
        match self {
            Self::Parked => ("parked", "outbox parked", "parked message", "Messages", OF_MESSAGES),
            Self::Dead => ("dead", "outbox dead", "dead message", "Messages", OF_MESSAGES),
            Self::Replays => {
                ("replays", "outbox replay", "replay that is still to be sent", "Messages", OF_REPLAYS)
            }
            Self::Letters => ("dead-letters", "inbox dead", "dead letter", "Letters", OF_LETTERS),
            Self::Failing => ("failing", "inbox failing", "failing message", "Messages", OF_FAILING),
            Self::Delayed => ("delayed", "outbox delayed", "delayed message", "Messages", OF_DELAYED),
            Self::Sagas => ("sagas", "saga", "saga", "Sagas", OF_SAGAS),
            Self::Settled => ("replays", "outbox replay", "settled message", "Messages", OF_SETTLED),
            Self::Losses => ("losses", "outbox", "loss", "Losses", OF_LOSSES),
            Self::Pauses => ("pauses", "outbox", "pause", "Messages", OF_PAUSES),
            Self::Audit => ("audit", "", "row", "Rows", OF_AUDIT),
            Self::Canaries => ("canaries", "canary", "canary", "Canaries", OF_CANARIES),
        }
    }

    /// The kind that a command lists, by the words before `list`.
    #[must_use]
    pub fn of_command(words: &[&str]) -> Option<Self> {
        let command = words.join(" ");
        let listed = [
            Self::Parked,
            Self::Dead,
            Self::Replays,
            Self::Letters,
            Self::Failing,
            Self::Delayed,
            Self::Sagas,
        ];
        listed.into_iter().find(|kind| kind.command() == command)
    }

    /// Its name in addresses.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.about().0
    }

    /// The words of its commands: `outbox dead`.
    #[must_use]
    pub fn command(self) -> &'static str {
        self.about().1
    }

    /// One of its things: `dead message`.
    #[must_use]
    pub fn thing(self) -> &'static str {
        self.about().2
    }

    /// Its things at the beginning of a sentence.
    #[must_use]
    pub fn things(self) -> &'static str {
        self.about().3
    }

    /// The options that select some of them.
    #[must_use]
    pub fn selectors(self) -> &'static [Field] {
        self.about().4
    }

    /// Its name in the statements on messages that are set aside.
    pub(crate) fn in_sql(self) -> &'static str {
        if self == Self::Replays { "replay" } else { self.name() }
    }
}
