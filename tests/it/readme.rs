//! The README's SQL and shell blocks; its Rust blocks are doctests of `tests/src/readme.rs`.

use std::{
    collections::BTreeSet,
    fs,
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

use oncebox_tests::TestEnv;

use crate::relay::process::program;

/// The blocks of one language, with the line where each begins.
fn blocks(language: &str) -> Vec<(usize, String)> {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md")).unwrap();
    let mut found = Vec::new();
    let mut open: Option<(bool, usize, String)> = None;
    for (number, line) in readme.lines().enumerate() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(info)) => {
                let ours = info.split([',', ' ']).next() == Some(language);
                open = Some((ours, number + 2, String::new()));
            }
            (Some(_), Some(_)) => {
                if let Some((true, start, text)) = open.take() {
                    found.push((start, text));
                }
            }
            (Some((_, _, text)), None) => {
                text.push_str(line);
                text.push('\n');
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block of README.md has no end");
    found
}

/// In order, in one database with the schema, as somebody would paste them into psql.
#[tokio::test]
async fn sql_blocks_run() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    for (line, sql) in blocks("sql") {
        client.batch_execute(&sql).await.unwrap_or_else(|error| panic!("README.md:{line}: {error:?}\n{sql}"));
    }
}

/// The commands that look at a database and end by themselves, as somebody would paste them into a shell.
#[tokio::test]
async fn operators_commands_run() {
    let env = TestEnv::new().await;
    // What is traced, above all.
    for (_, sql) in blocks("sql") {
        env.pg().await.batch_execute(&sql).await.unwrap();
    }
    let path = format!("{}:/usr/bin:/bin", program().parent().unwrap().display());
    let mut ran = 0;
    for (line, text) in blocks("sh") {
        for command in text.lines().filter(|command| {
            [
                "oncebox dead ",
                "oncebox parked ",
                "oncebox replay ",
                "oncebox prune ",
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
            let is_right = output.status.success() || output.status.code() == Some(1) && found_nothing;
            assert!(is_right, "README.md:{line}: {command}: {log}");
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
        .filter(|(name, _)| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase()))
        .map(|(name, _)| name)
        .collect();
    assert!(targets.contains("demo") && targets.contains("test"), "{targets:?}");
    for (line, text) in blocks("sh") {
        let mut shell = Command::new("sh").arg("-n").stdin(Stdio::piped()).spawn().unwrap();
        shell.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        assert!(shell.wait().unwrap().success(), "README.md:{line}: no shell script:\n{text}");
        let commands = text.lines().map(|line| line.split('#').next().unwrap_or_default());
        let words: Vec<&str> = commands.flat_map(|line| line.split([' ', '"', '(', ')', ';', '&'])).collect();
        for pair in words.windows(2).filter(|pair| pair[0] == "make") {
            let target = pair[1];
            let known = target.is_empty() || target.starts_with('-') || targets.contains(target);
            assert!(known, "README.md:{line}: make {target}");
        }
    }
}
