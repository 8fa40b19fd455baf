//! Rules of the house that the compiler and clippy cannot see.

mod arrows; // dependencies point one way
mod circles; // files do not use each other in a circle
mod documents; // what documents name is there
mod prose; // prose and comments fit into a hundred columns
mod voice; // how sentences are put: nouns, headings, blanks

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The crates whose statements, headers and clocks are judged.
const PRODUCT: [&str; 10] = [
    "connect/src",
    "relay/src",
    "operator/src",
    "console/src",
    "cli/src",
    "claims/src",
    "inbox/src",
    "http/src",
    "outbox/src",
    "saga/src",
];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// All files of the repository with this ending; with an empty one, all that are.
fn all_files(ending: &str) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut pending = vec![repository()];
    while let Some(path) = pending.pop() {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            if !["target", ".git", ".dev", "node_modules"].contains(&&*name) {
                pending.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            }
        } else if ending.is_empty() || path.extension().is_some_and(|extension| extension == ending) {
            found.insert(path);
        }
    }
    found
}

/// All files below the folders of the workspace's members with this ending.
fn files(ending: &str) -> BTreeSet<PathBuf> {
    let root = repository();
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let members = manifest.split_once("members = [").unwrap().1.split_once(']').unwrap().0;
    let mut found = BTreeSet::new();
    let mut pending: Vec<PathBuf> =
        members.split(',').map(|member| root.join(member.trim().trim_matches('"'))).collect();
    while let Some(path) = pending.pop() {
        if path.is_dir() {
            pending.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == ending) {
            found.insert(path);
        }
    }
    found
}

/// The files that Rust sources include, by their whole path: `include_str!("a/b.sql")`, or those of
/// a folder that the source names for a macro: `statements!("a/": ...)`.
fn included() -> BTreeSet<PathBuf> {
    let mut included = BTreeSet::new();
    for source in files("rs") {
        let text = fs::read_to_string(&source).unwrap();
        let folder = source.parent().unwrap();
        let words: BTreeSet<&str> = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
        let files = text.split("include_str!(").skip(1).map(|piece| (piece, false));
        let folders = text.split("statements!(").skip(1).map(|piece| (piece, true));
        for (piece, is_folder) in files.chain(folders) {
            let Some(name) = piece.split('"').nth(1) else { continue };
            let Ok(path) = folder.join(name).canonicalize() else { continue };
            if is_folder {
                let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
                included.extend(
                    entries.filter(|path| words.contains(&*path.file_stem().unwrap().to_string_lossy())),
                );
            } else {
                included.insert(path);
            }
        }
    }
    included
}

#[test]
fn every_sql_file_is_used_and_opens_with_its_purpose() {
    let (included, mut checked) = (included(), 0);
    for path in files("sql") {
        let text = fs::read_to_string(&path).unwrap();
        let name = path.strip_prefix(repository()).unwrap().display();
        assert!(text.starts_with("-- "), "{name} does not open with a comment that says what it is for");
        // The dump is read by a test, the examples' SQL is run by psql: files for people, not for
        // include_str!.
        let is_for_people = path.ends_with("schema/schema.sql") || name.to_string().starts_with("examples/");
        assert!(is_for_people || included.contains(&path), "{name} is included nowhere: delete it or use it");
        checked += 1;
    }
    assert!(checked > 5, "{checked}");
}

#[test]
fn no_statement_on_a_table_hides_in_rust() {
    let words = ["FROM {schema}", "INTO {schema}", "UPDATE {schema}", "JOIN {schema}"];
    for path in files("rs") {
        let name = path.strip_prefix(repository()).unwrap().display().to_string();
        if !PRODUCT.iter().any(|folder| name.starts_with(folder)) || name.ends_with("tests.rs") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for (number, line) in code.lines().enumerate() {
            let is_comment = line.trim_start().starts_with("//");
            let hides = words.iter().any(|word| line.contains(word));
            assert!(is_comment || !hides, "{name}:{}: SQL belongs into a .sql file: {line}", number + 1);
        }
    }
}

/// The clock of a program's host is read for reports only. Decisions use PostgreSQL's, and not the
/// time at which a transaction began.
#[test]
fn the_program_s_clock_decides_nothing() {
    // Ages in metrics and a warning, the skew that `oncebox doctor` reports, the name of a replay,
    // times of spans; where a nats-server before 2.10 does not say its own, the age of a consumer
    // in a report, and of an object against half of its life.
    const REPORTS: [&str; 8] = [
        "operator/src/survey/consumers.rs",
        "relay/src/nats/objects.rs",
        "inbox/src/effect_time.rs",
        "inbox/src/inbox/shared.rs",
        "connect/src/clock.rs",
        "operator/src/action/order.rs",
        "relay/src/serve/push.rs",
        "relay/src/telemetry/traces.rs",
    ];
    let product = PRODUCT.iter().chain(&["schema/src", "schema/migrations"]);
    let mut reports = BTreeSet::new();
    for path in files("rs").iter().chain(&files("sql")) {
        let name = path.strip_prefix(repository()).unwrap().display().to_string();
        if !product.clone().any(|folder| name.starts_with(folder)) {
            continue;
        }
        let text = fs::read_to_string(path).unwrap();
        let is_comment = |line: &&str| !["//", "--"].iter().any(|mark| line.trim_start().starts_with(mark));
        let code = text.lines().filter(is_comment).collect::<Vec<_>>().join("\n").to_lowercase();
        let words = [" now()", "(now()", "current_timestamp", "localtimestamp", "transaction_timestamp()"];
        if name.ends_with(".sql")
            && let Some(word) = words.iter().find(|word| code.contains(**word))
        {
            panic!("{name}: {word} is when the transaction began, use clock_timestamp()");
        }
        if code.contains("systemtime::now") {
            reports.insert(name);
        }
    }
    assert_eq!(reports, REPORTS.map(str::to_owned).into(), "who reads the clock of the program's host");
}

/// Before PostgreSQL 17 a difference with `infinity` is an error, and an operator's SQL may leave
/// that anywhere: seconds are subtracted, which may be infinite.
#[test]
fn no_statement_subtracts_times_of_tables() {
    // Those of pg_stat_activity and of parameters are finite.
    const FINITE: [&str; 4] = ["xact_start", "query_start", "prepared", "$"];
    let texts = files("sql").into_iter().filter(|path| {
        let name = path.strip_prefix(repository()).unwrap();
        PRODUCT.iter().chain(&["schema/src", "schema/migrations"]).any(|folder| name.starts_with(folder))
    });
    for path in texts {
        let text = fs::read_to_string(&path).unwrap();
        for (number, line) in text.lines().enumerate() {
            for inside in line.split("(epoch FROM ").skip(1) {
                let mut depth = 1;
                let inside: String = inside
                    .chars()
                    .take_while(|sign| {
                        depth += i32::from(*sign == '(') - i32::from(*sign == ')');
                        depth > 0
                    })
                    .collect();
                let may_fail = inside.contains(" - ") && !FINITE.iter().any(|word| inside.contains(word));
                assert!(!may_fail, "{}:{}: {inside}", path.display(), number + 1);
            }
        }
    }
}

/// Nothing older than the pinned compiler is run anywhere, so nothing older is promised.
#[test]
fn the_oldest_supported_rust_is_the_one_that_is_tested() {
    let value = |file: &str, name: &str| {
        let text = fs::read_to_string(repository().join(file)).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim_matches(['=', ' ', '"']).to_owned()
    };
    let (promised, tested) = (value("Cargo.toml", "rust-version"), value("rust-toolchain.toml", "channel"));
    assert_eq!(format!("{promised}.0"), tested, "rust-version of Cargo.toml, channel of rust-toolchain.toml");
}

/// Every text between quotes in the product that is named like a header on the wire.
#[test]
fn every_header_stands_in_the_table() {
    let document = fs::read_to_string(repository().join("docs/metrics.md")).unwrap().to_lowercase();
    let table = document.split_once("## headers\n").unwrap().1.split("\n## ").next().unwrap();
    let mut found = BTreeSet::new();
    for path in files("rs") {
        let name = path.strip_prefix(repository()).unwrap().display().to_string();
        if !PRODUCT.iter().any(|folder| name.starts_with(folder)) {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for word in code.split('"').skip(1).step_by(2) {
            let starts =
                ["Nats-", "Oncebox-", "Idempoten", "idempotent-", "x-idempotency", "tracep", "tracest"];
            let is_name = word.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'-');
            let is_whole = word.starts_with("trace") || (word.contains('-') && !word.ends_with('-'));
            if is_name && is_whole && starts.iter().any(|start| word.starts_with(start)) {
                let row = format!("`{}`", word.to_lowercase());
                assert!(table.contains(&row), "{name}: \"{word}\" is missing in docs/metrics.md");
                found.insert(word.to_lowercase());
            }
        }
    }
    assert!(found.len() >= 15, "{found:?}");
}

#[test]
fn files_stay_short() {
    for path in files("rs").iter().chain(&files("sql")) {
        let name = path.strip_prefix(repository()).unwrap();
        let lines = fs::read_to_string(path).unwrap().lines().count();
        let is_table = name == Path::new("schema/schema.sql");
        assert!(
            is_table || lines <= 400,
            "{}: {lines} lines; past 400 it is a table or must be split",
            name.display()
        );
    }
}

/// A line in `main.rs` for each file, in the folder that the file is in.
#[test]
fn every_test_file_is_a_module() {
    let folder = repository().join("tests/it");
    let main = fs::read_to_string(folder.join("main.rs")).unwrap();
    let (mut declared, mut room) = (BTreeSet::new(), String::new());
    for line in main.lines() {
        let line = line.trim().trim_start_matches("pub(crate) ");
        if let Some(name) = line.strip_prefix("mod ").and_then(|line| line.strip_suffix(" {")) {
            room = format!("{name}/");
        } else if let Some((name, purpose)) = line.strip_prefix("mod ").and_then(|line| line.split_once(';'))
        {
            assert!(purpose.starts_with(" // "), "main.rs does not say what belongs into {room}{name}");
            declared.insert(folder.join(format!("{room}{name}.rs")));
        } else if line == "}" {
            room.clear();
        }
    }
    let files = files("rs").into_iter().filter(|path| {
        let below = path.strip_prefix(&folder).map_or(0, |path| path.components().count());
        let is_part = path.parent().unwrap().with_extension("rs").exists();
        below > 0 && !is_part && !path.ends_with("main.rs")
    });
    assert_eq!(declared, files.collect(), "the modules in main.rs, and the files");
}

/// A service that answers requests needs no client of NATS, and one that only claims keys needs
/// neither that nor HTTP.
#[test]
fn crates_do_not_link_what_they_do_not_need() {
    for (package, foreign) in [
        ("oncebox-http", &["async-nats"][..]),
        ("oncebox-claims", &["async-nats", "axum", "hyper", "tower-service"]),
        ("oncebox-inbox", &["axum", "hyper"]),
    ] {
        let tree = Command::new(env!("CARGO"))
            .args(["tree", "--offline", "--prefix", "none", "--edges", "normal", "--package", package])
            .current_dir(repository())
            .output()
            .unwrap();
        let tree = String::from_utf8(tree.stdout).unwrap();
        let linked: BTreeSet<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
        assert!(linked.contains("tokio-postgres"), "{package}: {tree}");
        for name in foreign {
            assert!(!linked.contains(name), "{package} links {name}");
        }
    }
}
