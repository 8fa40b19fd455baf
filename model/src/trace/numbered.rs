//! The form of all recordings: lines of JSON, each with the life of its writer and its number.

use std::collections::HashMap;

use serde::{Deserialize, de::DeserializeOwned};

/// A line.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Numbered<T> {
    pub(super) run: String,
    pub(super) line: u64,
    #[serde(flatten)]
    pub(super) rest: T,
}

/// Reads a file, which may have several lives, each of which may end in half a line. Writers of one
/// process share a file.
pub(super) fn read<T: DeserializeOwned>(text: &str, mistakes: &mut Vec<String>) -> Vec<Numbered<T>> {
    let mut last: HashMap<String, u64> = HashMap::new();
    let mut read = Vec::new();
    let mut lines = text.lines().filter(|line| !line.is_empty()).peekable();
    while let Some(text) = lines.next() {
        let Ok(line) = serde_json::from_str::<Numbered<T>>(text) else {
            let next = lines.peek().map(|next| serde_json::from_str::<Numbered<T>>(next));
            if next.is_some_and(|next| !next.is_ok_and(|next| next.line == 1)) {
                mistakes.push(format!("no line of a recording: {text:.80}"));
            }
            continue;
        };
        let before = last.insert(line.run.clone(), line.line).unwrap_or(0);
        if line.line != before + 1 {
            mistakes.push(format!("run {}: line {} follows line {before}", line.run, line.line));
        }
        read.push(line);
    }
    read
}
