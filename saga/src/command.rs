//! The keys of commands: `saga:step`, `saga:step:undo`, and with a number from the second attempt
//! on, `saga:step:#2` and `saga:step:#2:undo`.
//!
//! A fan-out uses numbers such as `#2` too, for the parts of a step. So a command that is a second
//! or later attempt also says so in a header.

use oncebox_schema::{Key, KeyError};

/// The header of a command that is the second attempt or a later one: its number.
pub(crate) const ATTEMPT: &str = "Saga-Attempt";
const LENGTH_MAX: usize = 255;

/// The parts of a command's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) saga: Key,
    pub(crate) step: String,
    pub(crate) is_undo: bool,
    pub(crate) attempt: u32,
}

impl Address {
    pub(crate) fn parse(key: &Key) -> Option<Self> {
        let (text, is_undo) = without_undo(key.as_str());
        let (text, attempt) = match text.rsplit_once(':')? {
            (text, last) if last.starts_with('#') => {
                (text, last[1..].parse().ok().filter(|number| *number > 1)?)
            }
            _ => (text, 1),
        };
        let (saga, step) = text.rsplit_once(':')?;
        if step == "undo" || step.starts_with('#') {
            return None;
        }
        Some(Self { saga: saga.parse().ok()?, step: step.to_owned(), is_undo, attempt })
    }
}

/// The key of a command.
pub(crate) fn key(saga: &Key, step: &str, is_undo: bool, attempt: u32) -> Result<Key, KeyError> {
    let mut key = saga.step(step)?;
    if attempt > 1 {
        key = key.part(attempt)?;
    }
    if is_undo { key.undo() } else { Ok(key) }
}

/// Whether the longest key that a saga with these steps can have is short enough, with room for the
/// key of its reply.
pub(crate) fn fits(saga: &Key, longest_step: usize) -> bool {
    saga.as_str().len() + 1 + longest_step + ":#4294967295:undo:reply".len() <= LENGTH_MAX
}

/// The key of an action at its barrier, which all its attempts share, and the number of this
/// attempt.
pub(crate) fn action(key: &Key, attempt: Option<&str>) -> (Key, i32) {
    let number = attempt.and_then(|text| text.parse::<i32>().ok()).filter(|number| *number > 1);
    let bare = number
        .and_then(|number| key.as_str().strip_suffix(&format!(":#{number}")).map(|bare| (bare, number)));
    match bare.and_then(|(bare, number)| Some((bare.parse().ok()?, number))) {
        Some(found) => found,
        None => (key.clone(), 1),
    }
}

fn without_undo(text: &str) -> (&str, bool) {
    text.strip_suffix(":undo").map_or((text, false), |text| (text, true))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_key_says_what_it_was_made_of() {
        for saga in ["4711", "4711:order", "a%3Ab:order", "4711:#3:order"] {
            for (is_undo, attempt) in [(false, 1), (true, 1), (false, 2), (true, 12)] {
                let saga: Key = saga.parse().unwrap();
                let made = key(&saga, "pay", is_undo, attempt).unwrap();
                let expected = Address { saga, step: "pay".to_owned(), is_undo, attempt };
                assert_eq!(Address::parse(&made), Some(expected), "{made}");
            }
        }
        for other in ["4711", "4711:undo", "4711:pay:#1", "4711:undo:#2", "#2"] {
            assert_eq!(Address::parse(&other.parse().unwrap()), None, "{other}");
        }
    }

    #[test]
    fn attempts_share_a_row_and_parts_do_not() {
        let check = |text: &str, header: Option<&str>, bare: &str, attempt: i32| {
            assert_eq!(action(&text.parse().unwrap(), header), (bare.parse().unwrap(), attempt), "{text}");
        };
        check("o:pay", None, "o:pay", 1);
        check("o:pay:#2", None, "o:pay:#2", 1);
        check("o:pay:#2", Some("2"), "o:pay", 2);
        check("o:pay:#2", Some("3"), "o:pay:#2", 1);
        check("o:pay:#2", Some("x"), "o:pay:#2", 1);
    }

    proptest! {
        #[test]
        fn a_key_of_any_form_is_read_as_it_was_made(text in "[a-z0-9]{1,3}(:[a-z0-9]{1,3}|:undo|:#[1-3]|:#[0-9]{9,11}){0,4}") {
            let Ok(whole) = text.parse::<Key>() else { return Ok(()) };
            if let Some(Address { saga, step, is_undo, attempt }) = Address::parse(&whole) {
                prop_assert_eq!(key(&saga, &step, is_undo, attempt).unwrap(), whole.clone());
            }
            let (bare, number) = action(&whole, Some(&text));
            prop_assert!(number >= 1 && bare.as_str().len() <= whole.as_str().len());
        }
    }
}
