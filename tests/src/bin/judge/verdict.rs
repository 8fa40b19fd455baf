//! The verdict: how many messages were committed, and how many went wrong.

use std::{
    collections::{HashMap, HashSet},
    fmt,
};

use crate::sources::Committed;

#[derive(Debug, Default)]
pub(crate) struct Verdict {
    committed: HashMap<Box<str>, Known>,
    /// Their numbers.
    ordering_keys: HashMap<String, usize>,
    /// How many places were looked at: the stream, and each table of effects.
    looks: u32,
    copies: usize,
    effects: usize,
    pub(crate) lost: usize,
    pub(crate) doubled: usize,
    pub(crate) reordered: usize,
    pub(crate) invented: usize,
    examples: Vec<String>,
}

/// A committed message. There may be ten million of them, so this is small.
#[derive(Debug)]
struct Known {
    /// The number of the ordering key, and the place.
    place: Option<(usize, i64)>,
    /// The number of the last look that found it.
    found: u32,
}

/// A look at one place, key by key.
#[derive(Debug)]
pub(crate) struct Look<'a> {
    verdict: &'a mut Verdict,
    at: &'static str,
    /// The latest place of each ordering key.
    latest: HashMap<usize, i64>,
    strange: HashSet<String>,
    keys: usize,
    again: usize,
    reordered: usize,
}

const EXAMPLES: usize = 5;

impl Verdict {
    pub(crate) fn commit(&mut self, message: Committed) {
        let place = message.ordering_key.zip(message.place).map(|(ordering_key, place)| {
            let next = self.ordering_keys.len();
            (*self.ordering_keys.entry(ordering_key).or_insert(next), place)
        });
        self.committed.insert(message.key.into(), Known { place, found: 0 });
    }

    /// A stream may have copies, which consumers absorb.
    pub(crate) fn stream(&mut self) -> Look<'_> {
        self.look("the stream")
    }

    /// Effects happen once.
    pub(crate) fn effects(&mut self) -> Look<'_> {
        self.look("the effects")
    }

    /// Nothing was committed: then nothing is shown.
    pub(crate) fn is_right(&self) -> bool {
        let wrong = self.lost + self.doubled + self.reordered + self.invented;
        wrong == 0 && !self.committed.is_empty()
    }

    fn look(&mut self, at: &'static str) -> Look<'_> {
        self.looks += 1;
        Look {
            verdict: self,
            at,
            latest: HashMap::new(),
            strange: HashSet::new(),
            keys: 0,
            again: 0,
            reordered: 0,
        }
    }

    fn tell<'a>(&mut self, what: &str, at: &str, keys: impl Iterator<Item = &'a str>) {
        self.examples.extend(keys.take(EXAMPLES).map(|key| format!("{what} in {at}: {key}")));
    }
}

impl Look<'_> {
    /// The next key. The order is that of first copies.
    pub(crate) fn key(&mut self, key: &str) {
        self.keys += 1;
        let Some(known) = self.verdict.committed.get_mut(key) else {
            self.again += usize::from(!self.strange.insert(key.to_owned()));
            return;
        };
        if std::mem::replace(&mut known.found, self.verdict.looks) == self.verdict.looks {
            self.again += 1;
            return;
        }
        let Some((ordering_key, place)) = known.place else { return };
        let latest = self.latest.entry(ordering_key).or_insert(place);
        if place < *latest {
            self.reordered += 1;
            if self.reordered <= EXAMPLES {
                self.verdict.tell("reordered", self.at, [key].into_iter());
            }
        }
        *latest = (*latest).max(place);
    }

    /// Nothing follows in the stream.
    pub(crate) fn end_stream(self) {
        self.verdict.copies = self.again;
        self.end();
    }

    /// No more effects.
    pub(crate) fn end_effects(self) {
        self.verdict.effects += self.keys;
        self.verdict.doubled += self.again;
        self.end();
    }

    fn end(self) {
        let Self { verdict, at, strange, reordered, .. } = self;
        let looks = verdict.looks;
        let missing = |known: &Known| known.found != looks;
        let examples: Vec<String> = verdict
            .committed
            .iter()
            .filter(|(_, known)| missing(known))
            .map(|(key, _)| key.to_string())
            .take(EXAMPLES)
            .collect();
        verdict.lost += verdict.committed.values().filter(|known| missing(known)).count();
        verdict.reordered += reordered;
        verdict.invented += strange.len();
        verdict.tell("lost", at, examples.iter().map(String::as_str));
        verdict.tell("invented", at, strange.iter().map(String::as_str));
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for example in &self.examples {
            writeln!(f, "{example}")?;
        }
        let word = if self.is_right() { "RIGHT" } else { "WRONG" };
        let Self { copies, effects, lost, doubled, reordered, invented, .. } = self;
        let committed = self.committed.len();
        write!(f, "{word}: {committed} committed, {effects} effects, {copies} copies in the stream; ")?;
        write!(f, "{lost} lost, {doubled} doubled, {reordered} reordered, {invented} invented")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_is_judged() {
        let ledger = [("a", None), ("b", Some(("k", 0))), ("c", Some(("k", 1))), ("d", Some(("l", 0)))];
        let check = |stream: &str, effects: &str, expected: [usize; 4]| {
            let mut verdict = Verdict::default();
            for (key, place) in ledger {
                verdict.commit(Committed {
                    key: key.to_owned(),
                    ordering_key: place.map(|(ordering_key, _): (&str, i64)| ordering_key.to_owned()),
                    place: place.map(|(_, at)| at),
                });
            }
            let mut look = verdict.stream();
            stream.chars().for_each(|key| look.key(&key.to_string()));
            look.end_stream();
            let mut look = verdict.effects();
            effects.chars().for_each(|key| look.key(&key.to_string()));
            look.end_effects();
            let Verdict { lost, doubled, reordered, invented, .. } = verdict;
            assert_eq!([lost, doubled, reordered, invented], expected, "{stream} {effects}: {verdict}");
            assert_eq!(verdict.is_right(), expected == [0; 4]);
        };
        check("dbbac", "abcd", [0; 4]);
        check("abc", "abcd", [1, 0, 0, 0]);
        check("abcd", "abc", [1, 0, 0, 0]);
        check("abcd", "abcdd", [0, 1, 0, 0]);
        check("acbd", "abcd", [0, 0, 1, 0]);
        check("abcd", "acbd", [0, 0, 1, 0]);
        check("abcdx", "abcd", [0, 0, 0, 1]);
        check("abcd", "abcdx", [0, 0, 0, 1]);
        assert!(!Verdict::default().is_right(), "nothing is shown");
    }
}
