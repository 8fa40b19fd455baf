//! Denials of NATS to the relay's user, told aside: `-ERR 'Permissions Violation for Publish
//! to "orders.x"'`.

use std::{
    collections::HashSet,
    sync::{Mutex, PoisonError},
};

use tracing::{error, warn};

/// Subjects that are named in the log; an application may invent any number of them.
const NAMED_MAX: usize = 100;

/// The denied operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Denial {
    Publish(String),
    Subscribe(String),
}

/// Reads an error of the server; `None` when it speaks of something else.
pub(crate) fn parse(error: &str) -> Option<Denial> {
    let rest = error.strip_prefix("Permissions Violation for ")?;
    // A subscription in a queue is named after its subject.
    let subject = unquote(rest.split_once('"')?.1)?;
    if rest.starts_with("Publish") {
        Some(Denial::Publish(subject))
    } else if rest.starts_with("Subscription") {
        Some(Denial::Subscribe(subject))
    } else {
        None
    }
}

/// The text up to the closing quote. The server quotes as Go's `%q` does, which escapes quotes and
/// backslashes; all else of a subject is visible ASCII, which it leaves alone.
fn unquote(quoted: &str) -> Option<String> {
    let mut subject = String::new();
    let mut letters = quoted.chars();
    loop {
        match letters.next()? {
            '"' => return Some(subject),
            '\\' => subject.push(letters.next()?),
            letter => subject.push(letter),
        }
    }
}

/// Says each denial once, in a log that must not be flooded.
#[derive(Debug, Default)]
pub(crate) struct Denials {
    named: Mutex<HashSet<String>>,
}

impl Denials {
    /// A message for a subject cannot be published.
    pub(crate) fn report_publish(&self, subject: &str) {
        // No message has such a subject: it is a question to JetStream, and who asked is told.
        if subject.starts_with('$') {
            return;
        }
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        if named.len() >= NAMED_MAX || !named.insert(subject.to_owned()) {
            return;
        }
        warn!(
            subject,
            "NATS does not let the relay's user publish to this subject: its messages are set aside until it does; add \
             the subject to the user's permissions"
        );
        if named.len() == NAMED_MAX {
            warn!("NATS denies {NAMED_MAX} subjects; further ones are not named here");
        }
    }

    /// No acknowledgement can arrive.
    pub(crate) fn report_subscribe(&self, subject: &str) {
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        // Each inbox has a name of its own.
        if named.insert("subscribe".to_owned()) {
            error!(
                subject,
                "NATS does not let the relay's user subscribe to its inbox, where the acknowledgements arrive: grant \
                 it, or name another place by the option nats-inbox-prefix"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn denials_as_nats_server_words_them() {
        let publish = Denial::Publish("orders.placed".into());
        let subscribe = Denial::Subscribe("_INBOX.x.*".into());
        for (error, expected) in [
            (r#"Permissions Violation for Publish to "orders.placed""#, Some(publish)),
            (r#"Permissions Violation for Subscription to "_INBOX.x.*""#, Some(subscribe.clone())),
            (r#"Permissions Violation for Subscription to "_INBOX.x.*" using queue "q""#, Some(subscribe)),
            (r#"Permissions Violation for Publish with Reply of "x""#, Some(Denial::Publish("x".into()))),
            (
                r#"Permissions Violation for Publish to "say.\"hello\".c:\\temp""#,
                Some(Denial::Publish(r#"say."hello".c:\temp"#.into())),
            ),
            (r#"Permissions Violation for Publish to "unended\""#, None),
            ("Authorization Violation", None),
            ("Permissions Violation for ", None),
            (r#"Permissions Violation for Publish to "unended"#, None),
        ] {
            assert_eq!(parse(error), expected, "{error}");
        }
    }

    proptest! {
        #[test]
        fn an_error_of_any_text_is_read(
            text in any::<String>(),
            kind in "(Publish|Subscription|x)?",
            tail in r#"("|\\|[ -~]|é){0,12}"#,
        ) {
            parse(&text);
            let error = format!("Permissions Violation for {kind} to \"{tail}");
            if let Some(Denial::Publish(subject) | Denial::Subscribe(subject)) = parse(&error) {
                prop_assert!(subject.len() <= tail.len());
            }
        }
    }
}
