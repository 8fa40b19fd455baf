//! Compares the committed messages with the stream and with the inbox's effects. The fault matrix
//! and the chaos test end with these counts.

use std::collections::{HashMap, HashSet};

/// A committed message: its key and, when ordered, its entity and the place in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The key of the message.
    pub key: String,
    /// The entity, and a number that grows with each of its messages.
    pub place: Option<(i32, i64)>,
}

/// How many messages were committed, and how many of them went wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// How many were committed.
    pub messages: usize,
    /// How many are not in the stream, or had no effect.
    pub lost: usize,
    /// Effects beyond the first of each key.
    pub doubled: usize,
    /// First copies that stand after a later message of their ordering key, in the stream or among
    /// the effects.
    pub reordered: usize,
    /// Keys in the stream or among the effects that no producer committed.
    pub invented: usize,
}

impl Counts {
    /// Counts, from the keys of the stream in its order, and the keys of the effects in the order
    /// in which they were written.
    #[must_use]
    pub fn new(placed: &[Placed], stream: &[String], effects: &[String]) -> Self {
        let committed: HashMap<&str, Option<(i32, i64)>> =
            placed.iter().map(|message| (message.key.as_str(), message.place)).collect();
        let (in_stream, stream) = look(&committed, stream);
        let (in_effects, effects) = look(&committed, effects);
        let is_lost = |key: &&&str| !in_stream.contains(**key) || !in_effects.contains(**key);
        Self {
            messages: committed.len(),
            lost: committed.keys().filter(is_lost).count(),
            doubled: effects.copies,
            reordered: stream.reordered + effects.reordered,
            invented: stream.invented + effects.invented,
        }
    }
}

#[derive(Default)]
struct Seen {
    copies: usize,
    reordered: usize,
    invented: usize,
}

fn look<'a>(committed: &HashMap<&str, Option<(i32, i64)>>, keys: &'a [String]) -> (HashSet<&'a str>, Seen) {
    let (mut found, mut seen) = (HashSet::new(), Seen::default());
    let mut last: HashMap<i32, i64> = HashMap::new();
    for key in keys {
        if !found.insert(key.as_str()) {
            seen.copies += 1;
            continue;
        }
        match committed.get(key.as_str()) {
            None => seen.invented += 1,
            Some(None) => {}
            Some(Some((entity, place))) => {
                let latest = last.entry(*entity).or_insert(*place);
                seen.reordered += usize::from(*place < *latest);
                *latest = (*latest).max(*place);
            }
        }
    }
    (found, seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_counted() {
        let placed: Vec<Placed> =
            [("a", None), ("b", Some((1, 0))), ("c", Some((1, 1))), ("d", Some((2, 0)))]
                .map(|(key, place)| Placed { key: key.to_owned(), place })
                .into();
        let check = |stream: &str, effects: &str, expected: Counts| {
            let keys = |text: &str| text.chars().map(String::from).collect::<Vec<_>>();
            let counts = Counts::new(&placed, &keys(stream), &keys(effects));
            assert_eq!(counts, Counts { messages: 4, ..expected }, "{stream} {effects}");
        };
        let right = Counts::default();
        check("dbacb", "abcd", right);
        check("abc", "abcd", Counts { lost: 1, ..right });
        check("abcd", "abc", Counts { lost: 1, ..right });
        check("abcd", "abcdb", Counts { doubled: 1, ..right });
        check("acbd", "abcd", Counts { reordered: 1, ..right });
        check("abcd", "acbd", Counts { reordered: 1, ..right });
        check("abcdx", "abcdx", Counts { invented: 2, ..right });
    }
}
