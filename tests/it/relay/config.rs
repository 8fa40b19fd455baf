//! The configuration file: precedence, mistakes with their lines, declared streams; and its
//! documentation.

use std::{fs, path::Path};

use async_nats::jetstream::stream::{DiscardPolicy, StorageType};
use oncebox_connect::config::{Sources, options_document};
use oncebox_relay::Values;
use oncebox_tests::{Nats, TestEnv, eventually};
use tempfile::NamedTempFile;

use crate::relay::{
    process::Process,
    support::{LIMIT, await_messages, enqueue, fresh_stream, stream_config},
};

fn file(text: &str) -> (NamedTempFile, String) {
    let file = NamedTempFile::new().unwrap();
    fs::write(file.path(), text).unwrap();
    let path = file.path().to_str().unwrap().to_owned();
    (file, path)
}

async fn ended(arguments: &[&str], environment: &[(&str, &str)]) -> (i32, String) {
    let (status, log) = Process::start(arguments, environment.iter().copied()).ended().await;
    assert!(!log.contains("hunter2"), "{log}");
    (status.code().expect("no signal"), log)
}

#[test]
fn the_documented_tables_are_those_of_the_program() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/configuration.md");
    let text = fs::read_to_string(&path).unwrap();
    let (begin, end) = ("<!-- begin: written by `make schema` -->\n", "<!-- end -->");
    let (front, rest) = text.split_once(begin).expect("the first mark");
    let (_, back) = rest.split_once(end).expect("the second mark");
    let wanted = format!("{front}{begin}\n{}\n{end}{back}", options_document());
    if std::env::vars_os().any(|(name, _)| name == "ONCEBOX_TEST_WRITE_SCHEMA") {
        fs::write(&path, &wanted).unwrap();
    } else {
        assert!(text == wanted, "docs/configuration.md is not what the program reads: run `make schema`");
    }
}

#[tokio::test]
async fn every_mistake_of_a_file_is_reported_at_once_with_its_line() {
    let text = r#"database_url = "http://u:hunter2@h"
nats_password = "hunter2"
workers = 0
wrokers = 4
batch-lanes = 3
on_dead = ["block"]
config = "other.toml"
poll_max_milliseconds = 250

[[stream]]
name = "A.B"
subjects = ["a..b"]
replicas = 9
max_size = 3
policy = "update"

[[stream]]
subjects = "orders"

[[stream]]
name = "TWICE"
subjects = ["x"]
max_age = "1m"
duplicate_window = "1h"
"#;
    let (_kept, path) = file(text);
    let environment = [
        ("ONCEBOX_CONFIG", &*path),
        ("ONCEBOX_WINDOW", "0"),
        ("ONCEBOX_WORKER", "1"),
        ("NATS_URL", "nats://h"),
    ];
    let (code, log) = ended(&["relay", "--grace-seconds", "9999"], &environment).await;
    assert_eq!(code, 64, "{log}");
    let expected = [
        ":1: database_url: is no PostgreSQL URL",
        ":3: workers: \"0\" is not a whole number from 1 to 64",
        ":4: \"wrokers\" is not an option of oncebox; did you mean workers?",
        ":5: \"batch-lanes\" is not an option of oncebox; did you mean batch_lanes?",
        ":6: on_dead is a text, a whole number",
        ":7: \"config\" is not an option",
        ":11: name: \"A.B\" is not a name",
        ":12: subjects: \"a..b\" is not a subject",
        ":13: replicas: \"9\" is not a whole number from 1 to 5",
        ":14: \"max_size\" is not a field of a stream; did you mean max_",
        ":15: policy: \"update\" is not one of create, verify, ignore",
        ":18: subjects: is a list",
        ": a stream needs its name",
        ": duplicate_window is above max_age",
        "ONCEBOX_WINDOW): \"0\" is not",
        "ONCEBOX_WORKER is not an option of oncebox; did you mean ONCEBOX_WORKERS?",
        "--grace-seconds (ONCEBOX_GRACE_SECONDS): \"9999\" is not",
        "nats-user",
    ];
    for part in expected {
        assert!(log.contains(part), "{part}:\n{log}");
    }
    assert_eq!(log.lines().count(), expected.len() + 1, "{log}");
    // TOML itself: the line, never its content.
    let (_kept, path) = file("workers = 2\nnats_token = \"hunter2\nschema = oncebox\nworkers = 3\n");
    let (code, log) = ended(&["relay", "--config", &path], &[]).await;
    assert_eq!(code, 64, "{log}");
    assert!(log.contains(&format!("{path}:2: ")), "{log}");
    assert!(log.contains("DATABASE_URL"), "what else is wrong is told too: {log}");
    let (code, log) = ended(&["migrate", "--config", "/nowhere.toml"], &[]).await;
    assert!(code == 64 && log.contains("--config (ONCEBOX_CONFIG): read /nowhere.toml"), "{log}");
}

#[tokio::test]
async fn flags_win_over_the_environment_and_that_over_the_file() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    enqueue(&env.pg().await, &env.subject("a"), "m-", 0..10, 0).await;
    let text = format!(
        "database_url = {:?}\nnats_url = \"nats://127.0.0.1:1\"\nhttp_listen = \"nonsense\"\nworkers = 2\n",
        env.database_url()
    );
    let (_kept, path) = file(&text);
    let environment =
        [("NATS_URL", env.nats_url()), ("ONCEBOX_HTTP_LISTEN", "nonsense too"), ("ONCEBOX_CONFIG", &path)];
    let relay = Process::start(&["relay", "--http-listen", "127.0.0.1:0"], environment);
    await_messages(&stream, 10).await;
    assert_eq!(relay.get("/readyz").await.0, 200);
    relay.signal("TERM").await;
    assert_eq!(relay.ended().await.0.code(), Some(0));
    // A command that does not talk to NATS ignores its options in the file.
    let (_kept, path) =
        file(&format!("database_url = {:?}\nnats_token_file = \"/nowhere\"\n", env.database_url()));
    let (code, log) = ended(&["migrate", "--config", &path], &[]).await;
    assert_eq!(code, 0, "{log}");
}

/// The file for a relay with one declared stream.
fn declared(env: &TestEnv, nats: &Nats, stream: &str) -> (NamedTempFile, String) {
    file(&format!(
        "database_url = {:?}\nnats_url = {:?}\nhttp_listen = \"off\"\n[[stream]]\nname = \"ORDERS\"\nsubjects = [{:?}]\n{stream}",
        env.database_url(),
        nats.url(),
        env.subject(">")
    ))
}

#[tokio::test]
async fn a_declared_stream_is_created_when_missing_and_again_when_nats_lost_it() {
    let env = TestEnv::new().await;
    let nats = Nats::start().await.unwrap();
    let fields = "storage = \"memory\"\nmax_bytes = 1_000_000\nmax_age = \"1h\"\nduplicate_window = \"5m\"\n";
    let (_kept, path) = declared(&env, &nats, fields);
    let relay = Process::start(&["relay", "--config", &path], []);
    relay.await_log("created the stream").await;
    enqueue(&env.pg().await, &env.subject("a"), "m-", 0..10, 0).await;
    let context = async_nats::jetstream::new(async_nats::connect(nats.url()).await.unwrap());
    let stream = context.get_stream("ORDERS").await.unwrap();
    await_messages(&stream, 10).await;
    let config = stream.get_info().await.unwrap().config;
    assert_eq!((config.storage, config.discard), (StorageType::Memory, DiscardPolicy::New));
    assert_eq!(
        (config.max_bytes, config.max_age.as_secs(), config.duplicate_window.as_secs()),
        (1_000_000, 3600, 300)
    );
    // Kept in memory, it is gone with the server.
    let mut nats = nats;
    nats.kill().await;
    nats.resume().await.unwrap();
    relay.await_log("NATS is back").await;
    enqueue(&env.pg().await, &env.subject("a"), "later-", 0..10, 0).await;
    let context = async_nats::jetstream::new(async_nats::connect(nats.url()).await.unwrap());
    await_messages(&context.get_stream("ORDERS").await.unwrap(), 10).await;
    relay.signal("TERM").await;
    assert_eq!(relay.ended().await.1.matches("created the stream").count(), 2);
    // As declared: nothing to say.
    let (_kept, path) = declared(&env, &nats, &format!("{fields}policy = \"verify\"\n"));
    let relay = Process::start(&["relay", "--config", &path], []);
    relay.await_log("relay is running").await;
    relay.signal("TERM").await;
    assert!(!relay.ended().await.1.contains("ORDERS"));
}

#[tokio::test]
async fn a_declared_stream_that_is_deleted_under_a_running_relay_is_made_again() {
    let env = TestEnv::new().await;
    let nats = Nats::start().await.unwrap();
    let (_file, path) = declared(&env, &nats, "");
    let relay = Process::start(&["relay", "--config", &path], []);
    relay.await_log("created the stream").await;
    let context = async_nats::jetstream::new(async_nats::connect(nats.url()).await.unwrap());
    context.delete_stream("ORDERS").await.unwrap();
    let client = env.pg().await;
    enqueue(&client, &env.subject("a"), "m-", 0..10, 2).await;
    relay.await_log("created it again").await;
    await_messages(&context.get_stream("ORDERS").await.unwrap(), 10).await;
    // Once more, with a subscriber, so that the server does not report that there is none.
    let plain = async_nats::connect(nats.url()).await.unwrap();
    let _all = plain.subscribe(">").await.unwrap();
    plain.flush().await.unwrap();
    context.delete_stream("ORDERS").await.unwrap();
    enqueue(&client, &env.subject("a"), "n-", 0..10, 2).await;
    eventually("it is there, with the rest", LIMIT * 2, async || {
        let stream = context.get_stream("ORDERS").await.ok()?;
        (stream.cached_info().state.messages >= 10).then_some(())
    })
    .await;
    relay.kill().await;
}

#[tokio::test]
async fn what_differs_is_named_field_by_field_and_never_changed() {
    let env = TestEnv::new().await;
    let nats = Nats::start().await.unwrap();
    let verify = "max_bytes = 5000\ndiscard = \"new\"\nstorage = \"file\"\npolicy = \"verify\"\n";
    let (_kept, path) = declared(&env, &nats, verify);
    let (code, log) = ended(&["relay", "--config", &path], &[]).await;
    assert!(code == 1 && log.contains("stream ORDERS is missing"), "{code}: {log}");

    let mut there = stream_config("ORDERS", &env.subject("a"));
    there.max_bytes = 4_000;
    let stream = fresh_stream(&nats.url(), there).await;
    let before = stream.get_info().await.unwrap().config;
    let (code, log) = ended(&["relay", "--config", &path], &[]).await;
    assert_eq!(code, 1, "{log}");
    let differs = format!(
        "subjects is {}, declared {}, discard is old, declared new, max_bytes is 4000, declared 5000",
        env.subject("a"),
        env.subject(">")
    );
    assert!(log.contains(&differs), "{log}");
    // To create an existing stream changes nothing and goes on; to ignore says nothing.
    for (policy, mentions) in [("create", true), ("ignore", false)] {
        let (_kept, path) = declared(&env, &nats, &verify.replace("verify", policy));
        let relay = Process::start(&["relay", "--config", &path], []);
        relay.await_log("relay is running").await;
        relay.signal("TERM").await;
        let (status, log) = relay.ended().await;
        assert_eq!(status.code(), Some(0), "{log}");
        assert_eq!(log.contains(&differs), mentions, "{log}");
    }
    assert_eq!(stream.get_info().await.unwrap().config, before);
}

#[tokio::test]
async fn a_user_who_may_not_look_at_streams_is_told_so_at_once() {
    let env = TestEnv::new().await;
    let permissions = "permissions = { publish: \"nothing.>\" }";
    let users =
        format!("authorization {{ users = [ {{ user: relay, password: hunter2, {permissions} }} ] }}");
    let nats = Nats::start_with(&users).await.unwrap();
    let (_kept, path) = declared(&env, &nats, "policy = \"verify\"\n");
    let environment = [("ONCEBOX_NATS_USER", "relay"), ("ONCEBOX_NATS_PASSWORD", "hunter2")];
    let (code, log) = ended(&["relay", "--config", &path], &environment).await;
    assert!(code == 1 && log.contains("publish to \"$JS.API.STREAM.INFO.ORDERS\""), "{code}: {log}");
}

/// D8: a command with `--config` ran as another role, since the environment named one as well.
#[test]
fn a_value_of_the_file_that_the_environment_hides_is_named() {
    let (_file, path) = file("database_url = 'postgres://f@h/d'\nworkers = 3\n");
    let read = |variable: Option<&'static str>, flag: Option<&str>| {
        let mut flags = Values::from([("config", path.clone())]);
        flags.extend(flag.map(|text| ("database-url", text.to_owned())));
        let lookup = |name: &str| (name == "DATABASE_URL").then(|| variable.map(str::to_owned)).flatten();
        Sources::read(flags, [], lookup).hidden().to_vec()
    };
    let hidden = read(Some("postgres://e:secret@h/d"), None);
    assert!(
        hidden.len() == 1 && hidden[0].contains(":1: database-url is not used, since DATABASE_URL"),
        "{hidden:?}"
    );
    assert!(!hidden[0].contains("secret"));
    for (variable, flag) in [(Some("postgres://f@h/d"), None), (None, None), (None, Some("postgres://g@h/d"))]
    {
        assert_eq!(read(variable, flag), Vec::<String>::new(), "{variable:?} {flag:?}");
    }
}
