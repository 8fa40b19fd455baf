//! What the program writes for other programs: completions, its manual page, log lines in JSON.

use std::{io::Write as _, process::Stdio};

use oncebox_relay::OPTIONS;
use serde_json::Value;

use crate::relay_process::{Process, run, run_ok};

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
    for command in ["relay", "migrate", "dead", "replay", "prune"] {
        assert!(page.contains(&format!("oncebox {command}")), "{command}: {page}");
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
