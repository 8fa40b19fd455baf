//! The pauses and throttles of operators.
//!
//! Each claim reads the pauses in its own transaction, so a relay obeys a new one from its next
//! pass on, and so does a relay that has just started. A paused message is refused unsent, as by a
//! full stream: see `breaker`. A throttle's tokens lie in the database, since several relays, and
//! several workers of each, send its messages: see `take_tokens.sql`.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{
    decision::{Failure, Paused},
    message::Message,
    subjects::covers,
};

/// A row of the table `pause`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct Pause {
    kind: String,
    value: String,
    rate: Option<f64>,
    subjects: Option<Vec<String>>,
    ordering_key: Option<String>,
}

impl Pause {
    fn takes(&self, message: &Message) -> bool {
        let subjects = self.subjects.iter().flatten();
        let ordering_key = self.ordering_key.as_ref();
        subjects.into_iter().any(|pattern| covers(pattern, &message.subject))
            || ordering_key.is_some_and(|key| message.ordering_key.as_ref() == Some(key))
    }
}

/// The pauses that a claim has read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pauses(Vec<Pause>);

/// The throttles of a pass, in columns, with how many messages each is to let pass.
#[derive(Debug, Default)]
pub(crate) struct Wanted<'p> {
    pub(crate) places: Vec<i32>,
    pub(crate) kinds: Vec<&'p str>,
    pub(crate) values: Vec<&'p str>,
    pub(crate) rates: Vec<f64>,
    pub(crate) messages: Vec<i64>,
}

/// How many messages each throttle lets pass now, by its place in [`Wanted`].
pub(crate) type Tokens = BTreeMap<i32, i64>;

impl Pauses {
    /// From the JSON of a claim. While it cannot be read, for example because a rate written by
    /// hand is no number, all messages wait: one of them may be paused.
    pub(crate) fn parse(json: Option<&str>) -> Self {
        let unreadable = || Pause {
            kind: "all".to_owned(),
            value: "messages: the table pause cannot be read".to_owned(),
            rate: None,
            subjects: Some(vec![">".to_owned()]),
            ordering_key: None,
        };
        let read = |json| serde_json::from_str(json).unwrap_or_else(|_| vec![unreadable()]);
        Self(json.map(read).unwrap_or_default())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The tokens that the messages want. A paused one wants none.
    pub(crate) fn wanted(&self, messages: &[Message]) -> Wanted<'_> {
        let mut wanted = Wanted::default();
        let is_paused = |message: &Message| self.0.iter().any(|p| p.rate.is_none() && p.takes(message));
        let due: Vec<&Message> = messages.iter().filter(|m| is_due(m) && !is_paused(m)).collect();
        for (place, pause) in (0..).zip(&self.0) {
            let Some(rate) = pause.rate else { continue };
            let messages = due.iter().filter(|message| pause.takes(message)).count();
            if messages > 0 {
                wanted.places.push(place);
                wanted.kinds.push(&pause.kind);
                wanted.values.push(&pause.value);
                wanted.rates.push(rate);
                wanted.messages.push(i64::try_from(messages).unwrap_or(i64::MAX));
            }
        }
        wanted
    }

    /// Marks the messages that are not to be sent now. The oldest get the tokens, in any lane; a
    /// later message of a lane is not admitted before an earlier one.
    pub(crate) fn mark(&self, messages: &mut [Message], mut tokens: Tokens) {
        let mut oldest_first: Vec<&mut Message> = messages.iter_mut().filter(|m| is_due(m)).collect();
        oldest_first.sort_by_key(|message| message.id);
        for message in oldest_first {
            message.paused = self.of(message, &mut tokens);
        }
    }

    fn of(&self, message: &Message, tokens: &mut Tokens) -> Option<Paused> {
        let of_it: Vec<(i32, &Pause)> =
            (0..).zip(&self.0).filter(|(_, pause)| pause.takes(message)).collect();
        let paused = of_it.iter().find(|(_, pause)| pause.rate.is_none());
        let has_none = |place| tokens.get(place).is_none_or(|left| *left == 0);
        let refused = paused.or_else(|| of_it.iter().find(|(place, _)| has_none(place)));
        if refused.is_none() {
            for (place, _) in &of_it {
                tokens.entry(*place).and_modify(|left| *left -= 1);
            }
        }
        refused.map(|(_, pause)| Paused {
            what: format!("{} {}", pause.kind, pause.value).into(),
            is_throttled: pause.rate.is_some(),
            is_by_subject: pause.subjects.is_some(),
        })
    }
}

impl Failure {
    /// An operator lets some of these messages pass now, and others later.
    pub(crate) fn is_throttled(&self) -> bool {
        matches!(self, Self::Paused(paused) if paused.is_throttled)
    }
}

fn is_due(message: &Message) -> bool {
    !message.blocked && !message.is_passed
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pauses(json: &str) -> Pauses {
        Pauses::parse(Some(json))
    }

    fn message(subject: &str, ordering_key: Option<&str>) -> Message {
        Message {
            subject: subject.to_owned(),
            ordering_key: ordering_key.map(str::to_owned),
            ..Message::example()
        }
    }

    #[test]
    fn a_pause_takes_its_subjects_or_its_ordering_key() {
        let pauses = pauses(
            r#"[{"kind": "subject", "value": "a.>", "rate": null, "subjects": ["a.>"], "ordering_key": null},
                {"kind": "ordering key", "value": "k", "rate": null, "subjects": null, "ordering_key": "k"}]"#,
        );
        let mut messages =
            [message("a.b", None), message("b", Some("k")), message("b", Some("l")), message("b", None)];
        pauses.mark(&mut messages, Tokens::default());
        let what = messages.each_ref().map(|m| m.paused.as_ref().map(|paused| &*paused.what));
        assert_eq!(what, [Some("subject a.>"), Some("ordering key k"), None, None]);
    }

    #[test]
    fn while_the_pauses_cannot_be_read_all_messages_wait() {
        let json =
            r#"[{"kind": "subject", "value": "a", "rate": "NaN", "subjects": ["a"], "ordering_key": null}]"#;
        let mut messages = [message("b", None)];
        pauses(json).mark(&mut messages, Tokens::default());
        assert!(messages[0].paused.is_some());
    }

    #[test]
    fn the_oldest_messages_get_the_tokens_of_all_their_throttles() {
        let pauses = pauses(
            r#"[{"kind": "all", "value": "messages", "rate": 10, "subjects": [">"], "ordering_key": null},
                {"kind": "subject", "value": "a", "rate": 5, "subjects": ["a"], "ordering_key": null},
                {"kind": "subject", "value": "c", "rate": null, "subjects": ["c"], "ordering_key": null}]"#,
        );
        let with_id = |id, subject| Message { id, ..message(subject, None) };
        let mut messages =
            [with_id(9, "b"), with_id(3, "a"), with_id(1, "a"), with_id(2, "c"), with_id(8, "b")];
        let wanted = pauses.wanted(&messages);
        assert_eq!((wanted.places, wanted.messages), (vec![0, 1], vec![4, 2]), "a paused one wants none");
        pauses.mark(&mut messages, [(0, 2), (1, 1)].into());
        let mut sent: Vec<i64> =
            messages.iter().filter(|message| message.paused.is_none()).map(|message| message.id).collect();
        sent.sort_unstable();
        assert_eq!(sent, [1, 8], "3 lacks a token of its subject, 9 one of all messages");
        pauses.mark(&mut messages, Tokens::default());
        assert!(messages.iter().all(|message| message.paused.is_some()), "no answer is no token");
    }

    proptest! {
        /// While the table cannot be read, all messages wait.
        #[test]
        fn pauses_of_any_text_are_read(text in any::<String>()) {
            prop_assert_eq!(pauses(&text).0.len(), 1, "{}", text);
        }
    }
}
