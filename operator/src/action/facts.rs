//! The facts that follow from an action's line of the catalogue.

use std::collections::BTreeSet;

use oncebox_connect::words::counted;

use super::{
    catalogue::{ALL, Action, Verb},
    fields::{CANARY, Field, ONE_KEY, ONE_LETTER},
    kind::Kind,
};

/// The words of actions that destroy something: they are typed before it is done.
pub const GRAVE: [&str; 6] = ["discard", "skip", "abandon", "bury", "cancel", "edit"];

impl Action {
    /// Command lines of all actions, and their effects.
    pub fn all_examples() -> impl Iterator<Item = (&'static str, &'static str)> {
        ALL.iter().flat_map(|action| action.examples).copied()
    }

    /// The actions on a kind, in the order of the help.
    pub fn on(kind: Kind) -> impl Iterator<Item = Verb> {
        ALL.iter().filter(move |action| action.kind == kind).map(|action| action.verb)
    }

    /// The action of a kind with this name in addresses.
    #[must_use]
    pub fn named(kind: &str, word: &str) -> Option<Verb> {
        ALL.iter().find(|action| action.names() == [kind, word]).map(|action| action.verb)
    }

    /// The action with these words on the command line.
    #[must_use]
    pub fn of_command(words: &[&str]) -> Option<Verb> {
        let command = words.join(" ");
        ALL.iter().find(|action| action.command == command).map(|action| action.verb)
    }

    /// The kinds, and the actions, each once.
    #[must_use]
    pub fn all_names() -> [BTreeSet<&'static str>; 2] {
        [0, 1].map(|part| ALL.iter().map(|action| action.names()[part]).collect())
    }

    /// The fields that some action takes, each once.
    #[must_use]
    pub fn all_fields() -> BTreeSet<&'static str> {
        ALL.iter().flat_map(Self::fields).map(|field| field.name).collect()
    }

    /// In addresses: on which kind, and which action.
    #[must_use]
    pub fn names(&self) -> [&'static str; 2] {
        [self.kind.name(), self.word()]
    }

    /// `retry`.
    #[must_use]
    pub fn word(&self) -> &'static str {
        self.command.rsplit(' ').next().unwrap_or_default()
    }

    /// `Retry messages`.
    #[must_use]
    pub fn title(&self) -> String {
        let (first, rest) = self.word().split_at(1);
        format!("{}{rest} {}", first.to_uppercase(), self.things)
    }

    /// `1 dead letter`, `2 dead letters`; `number` is the count as it is shown.
    #[must_use]
    pub fn counted(&self, number: &str) -> String {
        counted(number, self.things.trim_end_matches('s'))
    }

    /// Whether it destroys something: its word is typed before it is done.
    #[must_use]
    pub fn is_grave(&self) -> bool {
        GRAVE.contains(&self.word())
    }

    /// Whether it changes the content of one message.
    #[must_use]
    pub fn is_edit(&self) -> bool {
        matches!(self.verb, Verb::EditDead | Verb::EditLetter)
    }

    /// Whether it changes rows that can be shown first, and nothing else.
    #[must_use]
    pub fn has_rows(&self) -> bool {
        !matches!(self.kind, Kind::Pauses | Kind::Canaries)
    }

    /// Whether it acts on one thing by its id, or key, which is no option of its command.
    #[must_use]
    pub fn takes_id_alone(&self) -> bool {
        matches!(self.kind, Kind::Audit | Kind::Canaries) || self.is_edit()
    }

    /// Whether a limit of changes a second means something.
    #[must_use]
    pub fn has_rate(&self) -> bool {
        let is_at_once = matches!(self.kind, Kind::Sagas | Kind::Losses | Kind::Audit) || self.is_edit();
        (self.has_rows() && !is_at_once) || self.verb == Verb::Throttle
    }

    /// Whether the messages themselves are in NATS, or go there.
    #[must_use]
    pub fn needs_nats(&self) -> bool {
        matches!(self.verb, Verb::RetryLetters | Verb::RetryFailing | Verb::BuryFailing)
    }

    /// Whether a canary can do it.
    #[must_use]
    pub fn has_canary(&self) -> bool {
        self.others == CANARY
    }

    /// The fields that say which things.
    #[must_use]
    pub fn selectors(&self) -> &'static [Field] {
        match self.verb {
            Verb::EditDead => ONE_KEY,
            Verb::EditLetter => ONE_LETTER,
            _ => self.kind.selectors(),
        }
    }

    fn fields(&self) -> impl Iterator<Item = &'static Field> {
        self.selectors().iter().chain(self.others)
    }

    /// Whether a field says which things.
    #[must_use]
    pub fn selects(&self, field: &str) -> bool {
        self.selectors().iter().any(|known| known.name == field)
    }

    /// Whether a field is given or not, and has no value.
    #[must_use]
    pub fn is_flag(&self, field: &str) -> bool {
        self.fields().any(|known| known.name == field && known.value.is_empty())
    }

    /// Whether it takes a field.
    #[must_use]
    pub fn takes(&self, field: &str) -> bool {
        self.fields().any(|known| known.name == field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_action_is_found_by_its_names_and_says_its_consequence() {
        for action in &ALL {
            let [kind, word] = action.names();
            assert_eq!(Action::named(kind, word), Some(action.verb));
            assert_eq!(action.verb.command, action.command);
            assert!(action.consequence.len() > 30 && action.about.len() > 10, "{word}");
            let command = format!("oncebox {}", action.command);
            assert!(action.examples.iter().any(|(line, _)| line.starts_with(&command)), "{command}");
        }
    }
}
