//! How sentences are put. A sentence names its actor, or a thing; a heading stands alone; a message
//! has no runs of blanks that a line's end has left in it.

use std::{collections::BTreeMap, fs, path::Path};

use super::{all_files, files, repository};

/// Words in place of an actor or of a thing, which the reader then has to find.
const WORDS: [&str; 11] = [
    "what",
    "whoever",
    "whatever",
    "whichever",
    "nobody",
    "somebody",
    "anybody",
    "behind",
    "so many",
    "so long",
    "for you who",
];
/// The most of them in a thousand words of comments and documents of a folder, or of a document of
/// the root: a folder that gets better gets a lower limit, none gets a higher one. Goal: 2.5. In
/// `cli` and `connect` programs print comments: as the help of arguments, and as tables of options.
const LIMITS: [(&str, f64); 6] = [
    ("cli", 3.6),
    ("connect", 1.0),
    ("findings", 1.7),
    ("CONTRIBUTING.md", 1.3),
    ("CHANGELOG.md", 1.0),
    ("docs", 0.7),
];
/// The limit of all others: now and then such a word is the right one.
const LIMIT: f64 = 0.5;

/// The first part of a path in the repository: a folder, or a file of the root.
fn folder(path: &Path) -> String {
    let below = path.strip_prefix(repository()).unwrap();
    below.components().next().unwrap().as_os_str().to_string_lossy().into_owned()
}

/// The comments of a source, or a document without its blocks of code: numbers of lines, and texts.
fn prose(ending: &str, text: &str) -> Vec<(usize, String)> {
    let marks: &[&str] = match ending {
        "rs" | "go" => &["//"],
        "ts" => &["//", "/**", "*"],
        "sql" => &["--"],
        "py" => &["#"],
        "md" => &[""],
        _ => &[],
    };
    let mut is_code = false;
    let lines = text.lines().zip(1..).filter_map(|(line, number)| {
        let is_fence = ending == "md" && line.trim_start().starts_with("```");
        is_code ^= is_fence;
        let read = marks.iter().find_map(|mark| line.trim_start().strip_prefix(mark));
        read.filter(|_| !is_code && !is_fence).map(|read| (number, read.to_owned()))
    });
    lines.collect()
}

/// How many of [`WORDS`], and of all words.
fn count(text: &str) -> (usize, usize) {
    let words: Vec<String> = text
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| word.contains(char::is_alphabetic))
        .map(str::to_lowercase)
        .collect();
    let joined = format!(" {} ", words.join(" "));
    (WORDS.iter().map(|word| joined.matches(&format!(" {word} ")).count()).sum(), words.len())
}

#[derive(Default)]
struct Folder {
    words: usize,
    /// The line of each of [`WORDS`].
    found: Vec<String>,
}

impl Folder {
    /// In a thousand words, rounded up to a tenth.
    #[expect(clippy::cast_precision_loss, reason = "words of a repository")]
    fn rate(&self) -> f64 {
        (self.found.len() as f64 * 10_000.0 / self.words.max(1) as f64).ceil() / 10.0
    }
}

#[test]
fn sentences_say_who_and_which_thing() {
    let mut folders: BTreeMap<String, Folder> = BTreeMap::new();
    // The dump repeats comments of the migrations.
    for path in all_files("").into_iter().filter(|path| !path.ends_with("schema/schema.sql")) {
        let ending = path.extension().unwrap_or_default().to_string_lossy();
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let folder = folders.entry(folder(&path)).or_default();
        for (line, text) in prose(&ending, &text) {
            let (found, words) = count(&text);
            let place = format!("{}:{line}", path.strip_prefix(repository()).unwrap().display());
            folder.words += words;
            folder.found.extend(std::iter::repeat_n(place, found));
        }
    }
    folders.retain(|_, folder| folder.words > 0);
    assert!(folders.len() > 20 && folders["clients"].words > 20_000, "too little is read");
    let rates: BTreeMap<_, _> = folders.iter().map(|(name, folder)| (name, folder.rate())).collect();
    let limits: BTreeMap<&str, f64> = LIMITS.into();
    let above = |name: &String| rates[name] > limits.get(&**name).copied().unwrap_or(LIMIT);
    let found: Vec<_> = folders.iter().filter(|(name, _)| above(name)).map(|(_, of)| &of.found).collect();
    assert!(found.is_empty(), "name the actor or the thing instead of {WORDS:?}: {found:#?}; all: {rates:?}");
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

/// Runs of blanks between the words of a literal; those after `\n` are an indentation.
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
    assert_eq!(count("What it takes, whoever asks, so many wait behind the others; whatsoever."), (4, 12));
    assert_eq!(count("`behind_dead` and 11 others"), (0, 3));
    assert_eq!(prose("ts", "/** One\n * two */\ncode // three"), [(1, " One".into()), (2, " two */".into())]);
    assert_eq!(prose("md", "One\n```\ntwo\n```\n"), [(1, "One".into())]);
    assert_eq!(
        crowded_headings("    /// # Errors The URL is none.\n/// # Errors\n/// # Errors that differ"),
        [1, 3]
    );
    assert_eq!(
        blanks("let a = \"add                  sslmode\";\nlet b = \"x\\n          y\";\n// \"a         b\""),
        [1]
    );
}
