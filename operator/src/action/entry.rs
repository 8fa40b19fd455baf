//! An entry of the catalogue of actions.

use super::{fields::Field, kind::Kind};

/// All about an action, whose name is a `V`.
#[derive(Debug)]
#[non_exhaustive]
pub struct Entry<V> {
    /// Which one.
    pub verb: V,
    /// The things that it acts on.
    pub kind: Kind,
    /// `outbox dead retry`: the last word is the action's.
    pub command: &'static str,
    /// `retried`, before the number of things.
    pub past: &'static str,
    /// The things by which it counts.
    pub things: &'static str,
    /// Its effect, in a line.
    pub about: &'static str,
    /// More of it, for the help text.
    pub more: &'static str,
    /// The consequence that an operator confirms.
    pub consequence: &'static str,
    /// The fields that say how.
    pub others: &'static [Field],
    /// Command lines, and their effects.
    pub examples: &'static [(&'static str, &'static str)],
}

/// An entry; the calls after it add the rest.
pub(super) const fn action<V>(
    verb: V,
    kind: Kind,
    command: &'static str,
    past: &'static str,
    things: &'static str,
) -> Entry<V> {
    Entry {
        verb,
        kind,
        command,
        past,
        things,
        about: "",
        more: "",
        consequence: "",
        others: &[],
        examples: &[],
    }
}

impl<V: Copy> Entry<V> {
    pub(super) const fn about(self, about: &'static str) -> Self {
        Self { about, ..self }
    }

    pub(super) const fn more(self, more: &'static str) -> Self {
        Self { more, ..self }
    }

    pub(super) const fn consequence(self, consequence: &'static str) -> Self {
        Self { consequence, ..self }
    }

    pub(super) const fn with(self, others: &'static [Field]) -> Self {
        Self { others, ..self }
    }

    pub(super) const fn examples(self, examples: &'static [(&'static str, &'static str)]) -> Self {
        Self { examples, ..self }
    }
}
