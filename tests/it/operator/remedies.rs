//! The commands that a finding names act on the rows that it counts, and on no other.

use oncebox_tests::TestEnv;
use serde_json::Value;

use crate::{
    operator::status::{named, start, status},
    relay::{
        process::run,
        support::{client, connect, drain, enqueue, with},
    },
};

/// The words of a command as a shell reads them.
fn words(command: &str) -> Vec<String> {
    let (mut words, mut is_quoted) = (vec![String::new()], false);
    for letter in command.chars() {
        match letter {
            '\'' => is_quoted = !is_quoted,
            ' ' if !is_quoted => words.push(String::new()),
            letter => words.last_mut().unwrap().push(letter),
        }
    }
    words
}

/// How many rows each command of the finding with this text would take.
async fn takes(url: &str, told: &Value, part: &str) -> Vec<String> {
    let findings = told["findings"].as_array().unwrap();
    let found = findings.iter().find(|finding| finding["what"].as_str().unwrap().contains(part));
    let remedy = found.unwrap_or_else(|| panic!("{part}: {told}"))["remedy"].as_str().unwrap();
    let mut all = Vec::new();
    for command in remedy.split('`').filter(|text| text.starts_with("oncebox ") && !text.ends_with(" list")) {
        let words = words(command);
        let words: Vec<&str> = words[1..].iter().map(String::as_str).chain(["--dry-run"]).collect();
        let (code, output, log) = run(url, &words).await;
        assert_eq!(code, 0, "{words:?}: {log}");
        all.push(output.lines().next().unwrap().to_owned());
    }
    all
}

#[tokio::test]
async fn the_commands_of_a_finding_take_the_rows_that_it_counts() {
    let env = TestEnv::new().await;
    let (_stream, pg, values) = start(&env).await;
    let _relay = client(&named(&env, "oncebox%20relay")).await;
    let url = env.database_url();
    // Two dead ones, of which one blocks its ordering key.
    let ordered = "SELECT oncebox.enqueue($1, $2, 'p', '{}', $3)";
    for (key, ordering_key) in [("first", "k"), ("behind", "k"), ("alone", "j")] {
        pg.execute(ordered, &[&key, &env.subject("lost.dead"), &ordering_key]).await.unwrap();
    }
    drain(&mut connect(&with(&values, [("attempts-max", "1")])).await.worker()).await;
    // One is refused, and the others of its ordering key and its subject wait.
    enqueue(&pg, &env.subject("lost.line"), "line-", 0..20, 1).await;
    enqueue(&pg, &env.subject("lost.many"), "many-", 0..3, 0).await;
    drain(&mut connect(&values).await.worker()).await;
    let told = status(url).await;
    assert_eq!(told["dead"], 2, "{told}");
    let dead = takes(url, &told, "2 messages are dead, with those that block").await;
    assert_eq!(dead, ["would retry 2 messages", "would discard 2 messages"]);
    let line = takes(url, &told, &format!("1 set aside, to {}", env.subject("lost.line"))).await;
    assert_eq!(line, ["would retry 1 message", "would discard 1 message"]);
    let many = takes(url, &told, &format!("3 set aside, to {}", env.subject("lost.many"))).await;
    assert_eq!(many, ["would retry 3 messages", "would discard 3 messages"]);
}
