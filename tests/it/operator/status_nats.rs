//! `oncebox status` tells of NATS: the streams that take the outbox's subjects, and obstacles
//! there.

use std::process::Stdio;

use async_nats::jetstream::stream::{Config, DiscardPolicy};
use oncebox_tests::{Nats, TestEnv};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
};

use crate::{
    operator::doctor::run_with,
    relay::{
        process::program,
        support::{LIMIT, client, connect, drain, enqueue, fresh_stream, stream_config, values_of},
    },
};

pub(crate) async fn status(env: &TestEnv, nats_url: &str) -> (i32, Value) {
    let environment = [("DATABASE_URL", env.database_url()), ("NATS_URL", nats_url)];
    let (code, output, log) = run_with(&["status", "--json"], &environment).await;
    (code, serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {output}{log}")))
}

pub(crate) fn findings(status: &Value) -> Vec<String> {
    let findings = status["findings"].as_array().unwrap().iter();
    let findings = findings.map(|found| format!("{} / {}", found["what"], found["remedy"]));
    findings.filter(|text| !text.contains("no relay is connected")).collect()
}

pub(crate) fn assert_finds(status: &Value, parts: &[&str]) {
    let found = findings(status);
    let matching = found.iter().filter(|text| parts.iter().all(|part| text.contains(part)));
    assert_eq!(matching.count(), 1, "{parts:?} in {found:#?}");
}

#[tokio::test]
async fn streams_are_shown_with_their_limits_and_a_full_one_is_a_finding() {
    let env = TestEnv::new().await;
    let pg = env.pg().await;
    let config = Config {
        discard: DiscardPolicy::New,
        max_messages: 8,
        max_bytes: 1_000_000,
        ..stream_config(env.name(), &env.subject("taken.>"))
    };
    fresh_stream(env.nats_url(), config).await;
    enqueue(&pg, &env.subject("taken.a"), "m-", 0..4, 0).await;
    drain(&mut connect(&values_of(&env)).await.worker()).await;
    let (code, told) = status(&env, env.nats_url()).await;
    assert_eq!((code, findings(&told).len()), (0, 1), "{told}");
    assert_finds(&told, &["nobody consumes"]);
    let stream = &told["nats"]["streams"][0];
    assert_eq!((&stream["name"], &stream["messages"]), (&json!(env.name()), &json!(4)), "{told}");
    assert_eq!((&stream["messages_max"], &stream["filled"]), (&json!(8), &json!(0.5)), "{told}");

    enqueue(&pg, &env.subject("taken.a"), "more-", 0..7, 0).await;
    enqueue(&pg, &env.subject("lost"), "lost-", 0..2, 0).await;
    drain(&mut connect(&values_of(&env)).await.worker()).await;
    let (_, told) = status(&env, env.nats_url()).await;
    assert_finds(&told, &["is full: 8 of 8 messages", "nats stream edit"]);
    assert_finds(&told, &["no stream takes the subject", &env.subject("lost"), "nats stream add"]);

    let environment = [("DATABASE_URL", env.database_url()), ("NATS_URL", env.nats_url())];
    let (_, text, _) = run_with(&["status"], &environment).await;
    let line = text.lines().find(|line| line.starts_with(env.name())).expect("a line for the stream");
    assert!(line.contains("8 of 8") && line.contains("100 %"), "{text}");
    // Not asked when no address is given, and then not found wanting.
    let (code, told) = status(&env, "").await;
    assert_eq!((code, &told["nats"], &told["nats_problem"]), (0, &json!(null), &json!(null)), "{told}");
    let (_, text, _) = run_with(&["status"], &environment[..1]).await;
    assert!(text.contains("not asked"), "{text}");
}

#[tokio::test]
async fn the_part_of_the_database_is_printed_while_nats_is_away() {
    let env = TestEnv::new().await;
    enqueue(&env.pg().await, &env.subject("a"), "m-", 0..5, 0).await;
    let (code, told) = status(&env, "nats://u:hunter2@127.0.0.1:1").await;
    assert_eq!(code, 69, "{told}");
    assert!(told["backlog_messages"].as_i64().unwrap() > 0, "{told}");
    let found = [0, 1].map(|place| told["findings"][place]["what"].as_str().unwrap());
    assert!(
        found[0].contains("no relay") && found[1].contains("NATS at nats://127.0.0.1:1 cannot"),
        "{told}"
    );
    assert!(!told.to_string().contains("hunter2"), "{told}");
    let environment = [("DATABASE_URL", env.database_url()), ("NATS_URL", "nats://127.0.0.1:1")];
    let (code, text, _) = run_with(&["status"], &environment).await;
    assert!(code == 69 && text.contains("LANE") && text.contains("cannot be reached"), "{text}");
    // Bad options of NATS are mistakes now.
    let environment = [("DATABASE_URL", env.database_url()), ("NATS_URL", "http://x y")];
    assert_eq!(run_with(&["status"], &environment).await.0, 64);
}

#[tokio::test]
async fn watching_goes_on_while_nats_goes_and_comes() {
    let env = TestEnv::new().await;
    let mut nats = Nats::start().await.unwrap();
    let mut command = Command::new(program());
    command.args(["status", "--json", "--watch", "1"]).env_clear().env("DATABASE_URL", env.database_url());
    command.env("NATS_URL", nats.url()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut watching = command.spawn().unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    let mut until = async |is_there: bool| {
        for _ in 0..20 {
            let line = tokio::time::timeout(LIMIT, lines.next_line()).await.unwrap().unwrap().unwrap();
            let told: Value = serde_json::from_str(&line).unwrap();
            if told["nats"].is_object() == is_there {
                return;
            }
        }
        panic!("it never says {is_there}");
    };
    until(true).await;
    nats.stop().await;
    until(false).await;
    nats.resume().await.unwrap();
    until(true).await;
}

#[tokio::test]
async fn the_roles_of_relay_and_operator_see_the_subjects() {
    let env = TestEnv::new().await;
    let pg = env.pg().await;
    enqueue(&pg, &env.subject("a"), "m-", 0..5, 0).await;
    let sql = env.schema.sql(include_str!("../../../operator/src/sql/recent_subjects.sql"));
    for role in ["oncebox_relay", "oncebox_operator"] {
        let session = client(env.database_url()).await;
        session.batch_execute(&format!("SET ROLE {role}")).await.unwrap();
        let rows = session.query(&sql, &[&1_000_i64, &10_i64]).await.unwrap();
        assert_eq!((rows.len(), rows[0].get::<_, i64>("messages")), (1, 5));
    }
}
