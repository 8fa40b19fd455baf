//! Files, links, headings and tests that the documents name exist.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use super::{all_files, repository};

/// A document for people, without its blocks of code.
struct Document {
    path: PathBuf,
    /// Line numbers from 1, and the lines outside of blocks of code.
    lines: Vec<(usize, String)>,
}

impl Document {
    fn name(&self) -> String {
        self.path.strip_prefix(repository()).unwrap().display().to_string()
    }

    /// The texts between backticks, with their lines.
    fn quoted(&self) -> impl Iterator<Item = (usize, &str)> {
        self.lines
            .iter()
            .flat_map(|(number, line)| line.split('`').skip(1).step_by(2).map(move |word| (*number, word)))
    }
}

fn documents() -> Vec<Document> {
    let documents: Vec<Document> = all_files("md")
        .into_iter()
        .map(|path| {
            let text = fs::read_to_string(&path).unwrap();
            let mut is_code = false;
            let lines = text.lines().zip(1..).filter_map(|(line, number)| {
                let is_fence = line.trim_start().starts_with("```");
                is_code ^= is_fence;
                (!is_code && !is_fence).then(|| (number, line.to_owned()))
            });
            Document { lines: lines.collect(), path }
        })
        .collect();
    assert!(documents.len() >= 10, "documents were not found");
    documents
}

/// As GitHub makes them from headings.
fn anchors(path: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(path).unwrap();
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let words = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        words.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn links_lead_to_files_and_headings_that_exist() {
    let mut checked = 0;
    for document in documents() {
        for (number, line) in &document.lines {
            for target in line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(t, _)| t) {
                if target.contains("://") {
                    continue;
                }
                let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
                let folder = document.path.parent().unwrap();
                let path = if file.is_empty() { document.path.clone() } else { folder.join(file) };
                let place = format!("{}:{number}", document.name());
                assert!(path.exists(), "{place}: the link to {target} leads nowhere");
                let is_known = anchor.is_empty() || anchors(&path).contains(anchor);
                assert!(is_known, "{place}: {target} names no heading of that document");
                checked += 1;
            }
        }
    }
    assert!(checked > 20, "{checked}");
}

/// Paths are whole, or the end of one: `worker/pass.rs`.
#[test]
fn files_that_documents_name_exist() {
    let endings = ["rs", "sql", "md", "sh", "toml", "yml", "yaml", "svg", "tsv", "py"];
    let files: Vec<String> = all_files("").iter().map(|path| path.display().to_string()).collect();
    let mut checked = 0;
    // The changelog tells of files as they were.
    for document in documents().iter().filter(|document| !document.path.ends_with("CHANGELOG.md")) {
        for (number, word) in document.quoted() {
            let is_path = word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-./".contains(&byte))
                && word
                    .rsplit_once('.')
                    .is_some_and(|(stem, ending)| !stem.is_empty() && endings.contains(&ending))
                && !word.starts_with("target/");
            if is_path {
                let end = format!("/{word}");
                let exists = files.iter().any(|file| file.ends_with(&end));
                assert!(exists, "{}:{number}: there is no file {word}", document.name());
                checked += 1;
            }
        }
    }
    assert!(checked > 50, "{checked}");
}

/// A module of `tests/it`, such as `relay::crash`, or a test in one.
#[test]
fn tests_that_documents_name_exist() {
    let it = repository().join("tests/it");
    let mut checked = 0;
    for document in documents() {
        let words = document.quoted().flat_map(|(number, words)| {
            words.split(['"', ' ', '=']).map(move |word| (number, word.trim_end_matches("::")))
        });
        for (number, word) in words {
            let Some((folder, rest)) = word.split_once("::") else { continue };
            if !it.join(folder).is_dir() || folder == "tidy" {
                continue;
            }
            let (module, test) = rest.split_once("::").unwrap_or((rest, ""));
            let file = it.join(folder).join(module).with_extension("rs");
            // Unit tests of a crate may have the name of a folder: those of `http::request`, say.
            let is_unit_test = !test.is_empty() && !file.exists();
            let has = |path: &Path| {
                fs::read_to_string(path).is_ok_and(|text| text.contains(&format!("fn {test}(")))
            };
            let exists = file.exists() && (test.is_empty() || has(&file));
            assert!(exists || is_unit_test, "{}:{number}: there is no test {word}", document.name());
            checked += 1;
        }
    }
    assert!(checked > 100, "{checked}");
}

/// `Type::name` in a document is a function, a variant or a constant in a source that knows the
/// type.
#[test]
fn names_of_the_api_that_documents_mention_exist() {
    let endings = ["rs", "py", "ts", "go"];
    let sources: Vec<String> = endings
        .iter()
        .flat_map(|ending| all_files(ending))
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    let mut checked = 0;
    for document in documents() {
        for (number, quoted) in document.quoted() {
            for (owner, name) in members(quoted) {
                let exists = sources.iter().any(|source| has_member(source, owner, name));
                assert!(exists, "{}:{number}: there is no {owner}::{name}", document.name());
                checked += 1;
            }
        }
    }
    assert!(checked > 40, "{checked}");
}

/// `Type` and `name` of each `Type::name` in a text.
fn members(quoted: &str) -> Vec<(&str, &str)> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let pairs = quoted.match_indices("::").map(|(at, colons)| {
        let owner = quoted[..at].rsplit(|c| !is_name(c)).next().unwrap_or_default();
        (owner, quoted[at + colons.len()..].split(|c| !is_name(c)).next().unwrap_or_default())
    });
    pairs.filter(|(owner, name)| owner.starts_with(char::is_uppercase) && !name.is_empty()).collect()
}

fn has_member(source: &str, owner: &str, name: &str) -> bool {
    let words = |line: &str| -> Vec<String> {
        line.split(|c: char| !c.is_alphanumeric() && c != '_').map(str::to_owned).collect()
    };
    source.contains(owner)
        && source.lines().filter(|line| line.contains(name)).any(|line| {
            let words: Vec<String> = words(line).into_iter().filter(|word| !word.is_empty()).collect();
            let is_function = words.windows(2).any(|pair| {
                ["fn", "const", "def", "func", "async"].contains(&pair[0].as_str()) && pair[1] == name
            });
            is_function || words.first().is_some_and(|word| word == name)
        })
}

#[test]
fn a_name_that_a_type_has_not_is_found() {
    assert_eq!(members("oncebox::Outcome::park(..)"), [("Outcome", "park")]);
    assert_eq!(members("relay::crash"), []);
    let source = "impl<R> Outcome<R> {\n    pub fn snooze(after: Duration) -> Self {\n        park.go()\n";
    assert!(has_member(source, "Outcome", "snooze"));
    assert!(!has_member(source, "Outcome", "parks") && !has_member(source, "Reply", "snooze"));
}

/// Each invariant says where the code keeps it, and which test fails when it does not.
#[test]
fn invariants_name_places_and_tests_that_exist() {
    let files: Vec<String> = all_files("").iter().map(|path| path.display().to_string()).collect();
    let folders: BTreeSet<String> =
        files.iter().filter_map(|file| Some(file.rsplit_once('/')?.0.to_owned())).collect();
    let text = fs::read_to_string(repository().join("docs/invariants.md")).unwrap();
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
    assert!(rows.len() > 60, "{}", rows.len());
    for row in rows {
        let [_, invariant, places, tests, _] = row.split('|').map(str::trim).collect::<Vec<_>>()[..] else {
            panic!("three cells: {row}");
        };
        assert!(tests.contains('`'), "no test holds: {invariant}");
        for place in places.split('`').skip(1).step_by(2) {
            let end = format!("/{}", place.trim_end_matches('/'));
            let is_file =
                files.iter().any(|file| file.ends_with(&end) || file.ends_with(&format!("{end}.rs")));
            assert!(
                is_file || folders.iter().any(|folder| folder.ends_with(&end)),
                "{invariant}: there is no {place}"
            );
        }
    }
}

#[test]
fn the_readme_stays_a_landing_page() {
    let lines = fs::read_to_string(repository().join("README.md")).unwrap().lines().count();
    assert!(lines <= 120, "{lines} lines of 120: what is for some readers only belongs into docs/");
}

#[test]
fn documents_install_crates_that_have_a_program() {
    const INSTALL: &str = "cargo install --path ";
    let mut found = 0;
    for path in all_files("md") {
        let text = fs::read_to_string(&path).unwrap();
        for rest in text.split(INSTALL).skip(1) {
            let manifest = rest.split_whitespace().next().unwrap().to_owned() + "/Cargo.toml";
            let manifest = fs::read_to_string(repository().join(&manifest)).unwrap();
            assert!(manifest.contains("[[bin]]"), "{}: {INSTALL}{rest:.20}", path.display());
            found += 1;
        }
    }
    assert!(found >= 2, "{found}");
}
