//! The SQL and shell blocks of the README and of `docs/`; their Rust blocks are doctests of
//! `tests/src/readme.rs`.

use std::{
    collections::BTreeSet,
    fs,
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

use oncebox_tests::TestEnv;

use crate::relay::process::program;

const DOCUMENTS: [&str; 21] = [
    "README.md",
    "CONTRIBUTING.md",
    "docs/producing.md",
    "docs/consuming.md",
    "docs/effects.md",
    "docs/install.md",
    "docs/operations.md",
    "docs/commands.md",
    "docs/alerts.md",
    "docs/upgrade.md",
    "docs/failures.md",
    "docs/delayed-messages.md",
    "docs/sagas.md",
    "docs/orchestrator.md",
    "docs/durability.md",
    "docs/configuration.md",
    "docs/metrics.md",
    "docs/languages.md",
    "docs/benchmarks.md",
    "clients/python/README.md",
    "deploy/README.md",
];

/// The blocks of one language, with the place where each begins.
fn blocks(document: &str, language: &str) -> Vec<(String, String)> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(document)).unwrap();
    let mut found = Vec::new();
    let mut open: Option<(bool, usize, String)> = None;
    for (number, line) in text.lines().enumerate() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(info)) => {
                let ours = info.split([',', ' ']).next() == Some(language);
                open = Some((ours, number + 2, String::new()));
            }
            (Some(_), Some(_)) => {
                if let Some((true, start, text)) = open.take() {
                    found.push((format!("{document}:{start}"), text));
                }
            }
            (Some((_, _, text)), None) => {
                text.push_str(line);
                text.push('\n');
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block of {document} has no end");
    found
}

/// Those of a document in order, in one database with the schema, as a user would paste them into
/// psql.
#[tokio::test]
async fn sql_blocks_run() {
    let mut ran = 0;
    for document in DOCUMENTS {
        let env = TestEnv::new().await;
        let client = env.pg().await;
        for (place, sql) in blocks(document, "sql") {
            client.batch_execute(&sql).await.unwrap_or_else(|error| panic!("{place}: {error:?}\n{sql}"));
            ran += 1;
        }
    }
    assert!(ran >= 3, "{ran}");
}

/// The commands that look at a database and end by themselves, as a user would paste them into a
/// shell.
#[tokio::test]
async fn operators_commands_run() {
    let env = TestEnv::new().await;
    // The messages to trace.
    for (_, sql) in blocks("docs/producing.md", "sql") {
        env.pg().await.batch_execute(&sql).await.unwrap();
    }
    let path = format!("{}:/usr/bin:/bin", program().parent().unwrap().display());
    let mut ran = 0;
    for (place, text) in blocks("docs/commands.md", "sh") {
        for command in text.lines().filter(|command| {
            [
                "oncebox outbox dead ",
                "oncebox outbox parked ",
                "oncebox outbox replay ",
                "oncebox outbox prune ",
                "oncebox status",
                "oncebox trace ",
            ]
            .iter()
            .any(|name| command.starts_with(name))
        }) {
            let mut shell = Command::new("sh");
            shell
                .args(["-c", command])
                .env_clear()
                .env("PATH", &path)
                .env("DATABASE_URL", env.database_url());
            let output = shell.output().unwrap();
            let log = String::from_utf8_lossy(&output.stderr);
            // Here there is nothing to find, which a command says.
            let found_nothing = log.contains("is selected") || log.contains("has the key");
            // Nor is a relay, which the status of waiting messages ends with.
            let found_nothing = found_nothing || command.starts_with("oncebox status");
            let is_right = output.status.success() || output.status.code() == Some(1) && found_nothing;
            assert!(is_right, "{place}: {command}: {log}");
            ran += 1;
        }
    }
    assert!(ran >= 8, "{ran}");
}

#[test]
fn shell_blocks_parse_and_name_targets_that_exist() {
    let makefile = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../Makefile")).unwrap();
    let targets: BTreeSet<&str> = makefile
        .lines()
        .filter_map(|line| line.split_once(':'))
        .filter(|(name, _)| {
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-')
        })
        .map(|(name, _)| name)
        .collect();
    assert!(targets.contains("demo") && targets.contains("test"), "{targets:?}");
    for (place, text) in DOCUMENTS.iter().flat_map(|document| blocks(document, "sh")) {
        let mut shell = Command::new("sh").arg("-n").stdin(Stdio::piped()).spawn().unwrap();
        shell.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        assert!(shell.wait().unwrap().success(), "{place}: no shell script:\n{text}");
        let commands = text.lines().map(|line| line.split('#').next().unwrap_or_default());
        let words: Vec<&str> = commands.flat_map(|line| line.split([' ', '"', '(', ')', ';', '&'])).collect();
        for pair in words.windows(2).filter(|pair| pair[0] == "make") {
            let target = pair[1];
            let known = target.is_empty() || target.starts_with('-') || targets.contains(target);
            assert!(known, "{place}: make {target}");
        }
    }
}
