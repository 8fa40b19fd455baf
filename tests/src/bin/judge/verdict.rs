//! The verdict: how many messages were committed, and how many went wrong.

use std::{
    collections::{HashMap, HashSet},
    fmt,
};

use crate::sources::Committed;

#[derive(Debug, Default)]
pub(crate) struct Verdict {
    committed: HashMap<String, Option<(String, i64)>>,
    copies: usize,
    effects: usize,
    pub(crate) lost: usize,
    pub(crate) doubled: usize,
    pub(crate) reordered: usize,
    pub(crate) invented: usize,
    examples: Vec<String>,
}

const EXAMPLES: usize = 5;

impl Verdict {
    pub(crate) fn new(committed: Vec<Committed>) -> Self {
        let place = |of: Committed| (of.key, of.ordering_key.zip(of.place));
        Self { committed: committed.into_iter().map(place).collect(), ..Self::default() }
    }

    /// A stream may have copies, which consumers absorb.
    pub(crate) fn stream(&mut self, keys: &[String]) {
        self.copies = self.look("the stream", keys);
    }

    /// Effects happen once.
    pub(crate) fn effects(&mut self, keys: &[String]) {
        self.effects += keys.len();
        let doubled = self.look("the effects", keys);
        self.doubled += doubled;
    }

    /// Nothing was committed: then nothing is shown.
    pub(crate) fn is_right(&self) -> bool {
        let wrong = self.lost + self.doubled + self.reordered + self.invented;
        wrong == 0 && !self.committed.is_empty()
    }

    /// Returns how many keys come again. The order is that of first copies.
    fn look(&mut self, place: &str, keys: &[String]) -> usize {
        let mut seen: HashSet<&str> = HashSet::new();
        let mut latest: HashMap<&str, i64> = HashMap::new();
        let (mut again, mut reordered, mut invented) = (Vec::new(), Vec::new(), Vec::new());
        for key in keys {
            if !seen.insert(key) {
                again.push(key);
                continue;
            }
            match self.committed.get(key) {
                None => invented.push(key),
                Some(None) => {}
                Some(Some((ordering_key, at))) => {
                    let latest = latest.entry(ordering_key).or_insert(*at);
                    if at < latest {
                        reordered.push(key);
                    }
                    *latest = (*latest).max(*at);
                }
            }
        }
        let lost: Vec<&String> = self.committed.keys().filter(|key| !seen.contains(key.as_str())).collect();
        self.lost += lost.len();
        self.reordered += reordered.len();
        self.invented += invented.len();
        for (what, keys) in [("lost", lost), ("reordered", reordered), ("invented", invented)] {
            let of_kind = keys.iter().map(|key| format!("{what} in {place}: {key}"));
            self.examples.extend(of_kind.take(EXAMPLES));
        }
        again.len()
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
            let committed = ledger.map(|(key, place)| Committed {
                key: key.to_owned(),
                ordering_key: place.map(|(ordering_key, _): (&str, i64)| ordering_key.to_owned()),
                place: place.map(|(_, at)| at),
            });
            let keys = |text: &str| text.chars().map(String::from).collect::<Vec<_>>();
            let mut verdict = Verdict::new(committed.into());
            verdict.stream(&keys(stream));
            verdict.effects(&keys(effects));
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
        assert!(!Verdict::new(Vec::new()).is_right(), "nothing is shown");
    }
}
