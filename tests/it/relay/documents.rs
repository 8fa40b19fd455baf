//! The program's output for other programs: completions, its manual page, log lines in JSON.

use std::{io::Write as _, process::Stdio};

use oncebox_connect::config::OPTIONS;
use serde_json::Value;

use crate::relay::process::{Process, run, run_ok};

#[tokio::test]
async fn the_shell_accepts_its_completions() {
    let script = run_ok("", &["completions", "bash"]).await;
    for word in ["oncebox", "--database-url", "discard"] {
        assert!(script.contains(word), "{word}");
    }
    let check = std::process::Command::new("bash").arg("-n").stdin(Stdio::piped()).spawn();
    let mut check = check.unwrap();
    check.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(check.wait().unwrap().success(), "{script}");
    let (code, _, refusal) = run("", &["completions", "basic"]).await;
    assert_eq!(code, 64, "{refusal}");
    assert!(refusal.contains("bash"), "{refusal}");
}

#[tokio::test]
async fn the_manual_page_has_every_command_and_every_flag() {
    // Roff escapes hyphens.
    let page = run_ok("", &["man"]).await.replace("\\-", "-");
    assert!(page.contains(".TH oncebox 1"), "{page}");
    for flag in OPTIONS.iter().filter(|option| !option.is_secret) {
        assert!(page.contains(&format!("--{}", flag.name)), "{}: {page}", flag.name);
    }
    for command in [
        "relay",
        "migrate",
        "outbox dead discard",
        "inbox dead retry",
        "outbox replay",
        "inbox prune",
        "saga list",
    ] {
        assert!(page.contains(&format!(".SH \"oncebox {command}\"")), "{command}: {page}");
    }
    for section in ["EXIT STATUS", "EXAMPLES", "ENVIRONMENT"] {
        assert!(page.contains(&format!(".SH \"{section}\"")), "{section}: {page}");
    }
    for code in ["0", "1", "64", "69", "77", "130"] {
        assert!(page.contains(&format!(".TP\n\\fB{code}\\fR")), "{code}: {page}");
    }
    assert!(page.contains("ONCEBOX_NATS_PASSWORD"), "{page}");
    let others = page.match_indices("(1)").filter(|(at, _)| !page[..*at].ends_with("man"));
    assert_eq!(others.count(), 0, "it refers to a page that there is not: {page}");
}

/// The help of a command, and of those below it.
pub(crate) async fn helps(path: Vec<String>) -> Vec<(String, String)> {
    let (mut all, mut open) = (Vec::new(), vec![path]);
    while let Some(path) = open.pop() {
        let arguments: Vec<&str> = path.iter().map(String::as_str).chain(["--help"]).collect();
        let help = run_ok("", &arguments).await;
        let below =
            help.split_once("\nCommands:\n").map_or("", |(_, rest)| rest.split("\n\n").next().unwrap());
        let starts = |line: &&str| line.starts_with("  ") && !line.starts_with("   ");
        let names = below.lines().filter(starts).filter_map(|line| line.split_whitespace().next());
        open.extend(
            names.filter(|name| *name != "help").map(|name| [&path[..], &[name.to_owned()]].concat()),
        );
        all.push((path.join(" "), help));
    }
    all
}

#[tokio::test]
async fn help_has_lines_of_a_hundred_columns_and_examples() {
    let all = helps(Vec::new()).await;
    assert!(all.len() >= 20, "{}", all.len());
    for (command, help) in all {
        let long: Vec<&str> = help.lines().filter(|line| line.chars().count() > 100).collect();
        assert!(long.is_empty(), "{command}: {long:?}");
        let expected = if command.is_empty() { "Exit codes:" } else { "Examples:\n  oncebox " };
        assert!(help.contains(expected), "{command}: {help}");
    }
}

#[tokio::test]
async fn with_the_json_format_every_log_line_is_an_object() {
    let environment = [
        ("DATABASE_URL", "postgres://me@127.0.0.1:1/orders"),
        ("NATS_URL", "nats://127.0.0.1:1"),
        ("ONCEBOX_LOG_FORMAT", "json"),
    ];
    let (status, log) = Process::start(&["relay"], environment).ended().await;
    assert_eq!(status.code(), Some(69), "{log}");
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let last = lines.last().expect("a line");
    assert_eq!(last["level"], "ERROR");
    assert!(
        last["message"].as_str().unwrap().contains("PostgreSQL at 127.0.0.1:1/orders cannot be reached"),
        "{log}"
    );
}
