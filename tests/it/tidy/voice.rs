//! How sentences are put. The subject of a sentence is somebody, or a thing with a name; a heading
//! stands alone; a message has no runs of blanks that a line's end has left in it.

use std::{collections::BTreeMap, fs, path::Path};

use super::{all_files, files, repository};

/// Words that stand for a noun which the reader has to find.
const NOUNS: &[&str] = &["what", "whoever", "whatever", "that of"];
/// So many of them at most in a thousand words of a folder's documents, or of its comments.
const NOUNS_MAX: f64 = 3.0;

/// The first folder of a file in the repository, or `.`.
fn folder(path: &Path) -> String {
    let below = path.strip_prefix(repository()).unwrap();
    let first = below.parent().and_then(|parent| parent.components().next());
    first.map_or(".".to_owned(), |first| first.as_os_str().to_string_lossy().into_owned())
}

/// A document without its blocks of code.
fn prose(text: &str) -> String {
    let mut is_code = false;
    let lines = text.lines().filter(|line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn comments(text: &str, mark: &str) -> String {
    let lines = text.lines().filter_map(|line| line.trim_start().strip_prefix(mark));
    lines.map(|line| line.trim_start_matches(['/', '!'])).collect::<Vec<_>>().join("\n")
}

/// How many of [`NOUNS`], and of all words.
fn count(text: &str) -> (usize, usize) {
    let words: Vec<String> = text
        .split(|c: char| !c.is_alphabetic() && c != '\'')
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect();
    let joined = format!(" {} ", words.join(" "));
    (NOUNS.iter().map(|noun| joined.matches(&format!(" {noun} ")).count()).sum(), words.len())
}

/// In a thousand words, rounded up to a tenth.
fn rates(texts: impl Iterator<Item = (String, String)>) -> BTreeMap<String, f64> {
    let mut counts: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for (folder, text) in texts {
        let (nouns, words) = count(&text);
        let sum = counts.entry(folder).or_default();
        *sum = (sum.0 + nouns, sum.1 + words);
    }
    #[expect(clippy::cast_precision_loss, reason = "words of a repository")]
    let rate = |(nouns, words): (usize, usize)| (nouns as f64 * 10_000.0 / words.max(1) as f64).ceil() / 10.0;
    counts.into_iter().map(|(folder, counts)| (folder, rate(counts))).collect()
}

fn compare(kind: &str, found: &BTreeMap<String, f64>) {
    let above: Vec<_> = found.iter().filter(|(_, rate)| **rate > NOUNS_MAX).collect();
    assert!(
        above.is_empty(),
        "{kind}: say who it is, or which thing, instead of {NOUNS:?}: {above:?}; all: {found:?}"
    );
}

#[test]
fn sentences_say_who_and_which_thing() {
    let read = |path: &Path| fs::read_to_string(path).unwrap();
    let documents = all_files("md").into_iter().map(|path| (folder(&path), prose(&read(&path))));
    let documents = rates(documents);
    let of = |ending: &'static str, mark: &'static str| {
        let sources = files(ending).into_iter().filter(|path| !path.ends_with("schema/schema.sql"));
        sources.map(move |path| (folder(&path), comments(&read(&path), mark)))
    };
    let comments = rates(of("rs", "//").chain(of("sql", "--")));
    assert!(documents.len() > 2 && comments.len() > 10, "{documents:?} {comments:?}");
    compare("documents", &documents);
    compare("comments", &comments);
}

/// Lines like `# Errors The URL is none`: rustdoc makes one heading of all of it.
fn crowded_headings(text: &str) -> Vec<usize> {
    const HEADINGS: [&str; 5] = ["Errors", "Panics", "Examples", "Example", "Safety"];
    let is_crowded = |line: &str| {
        let heading = line.trim_start().strip_prefix("/// #").or(line.trim_start().strip_prefix("//! #"));
        heading
            .and_then(|heading| heading.trim_start_matches('#').trim().split_once(' '))
            .is_some_and(|(first, _)| HEADINGS.contains(&first.trim_end_matches([':', '.'])))
    };
    text.lines().zip(1..).filter(|(line, _)| is_crowded(line)).map(|(_, number)| number).collect()
}

/// Runs of blanks between the words of a literal; those behind `\n` are an indentation.
fn blanks(text: &str) -> Vec<usize> {
    const RUN: &str = "     ";
    let has_run = |line: &str| {
        let is_comment = line.trim_start().starts_with("//");
        !is_comment
            && line.split('"').skip(1).step_by(2).any(|literal| {
                literal.trim().match_indices(RUN).any(|(at, _)| {
                    let before = literal.trim()[..at].trim_end();
                    !before.is_empty() && !before.ends_with("\\n")
                })
            })
    };
    text.lines().zip(1..).filter(|(line, _)| has_run(line)).map(|(_, number)| number).collect()
}

#[test]
fn headings_stand_alone_and_messages_have_no_runs_of_blanks() {
    let mut checked = 0;
    let mut found = Vec::new();
    for path in files("rs") {
        let (text, name) = (fs::read_to_string(&path).unwrap(), path.strip_prefix(repository()).unwrap());
        let headings = crowded_headings(&text).into_iter().map(|line| (line, "a heading with a text"));
        // Tests, and the programs for developers, align their output by hand.
        let is_product = !["tests", "bench", "examples"].contains(&folder(&path).as_str());
        let product = text.split("#[cfg(test)]").next().filter(|_| is_product).unwrap_or_default();
        let blanks = blanks(product).into_iter().map(|line| (line, "a run of blanks"));
        found.extend(headings.chain(blanks).map(|(line, it)| format!("{}:{line}: {it}", name.display())));
        checked += 1;
    }
    assert!(checked > 400, "{checked}");
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn faults_of_voice_are_found() {
    assert_eq!(count("What it takes, whoever asks, is that of the others; whatsoever."), (3, 11));
    assert_eq!(
        crowded_headings("    /// # Errors The URL is none.\n/// # Errors\n/// # Errors that differ"),
        [1, 3]
    );
    assert_eq!(
        blanks("let a = \"add                  sslmode\";\nlet b = \"x\\n          y\";\n// \"a         b\""),
        [1]
    );
}
