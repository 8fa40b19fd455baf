//! Handlers, errors and connections that end in odd ways, each with its verdict.

use async_nats::HeaderMap;
use oncebox_tests::{Program, TestEnv, eventually};
use tokio::{process::Command, time::timeout};

use super::shop::{LIMIT, Programs, lines};

/// Name, verdict, runs of the handler, whether the pause is long, reason and reply.
const GO: &str = r#"calm: handled, 1, false, null
rejects: rejected, 1, false, "no"
rejects: rejected, 0, false, "no"
conflict: handled, 2, false, null
later: retry, 1, true, not yet: the handler asked for a retry after 2h0m0s
group: retry, 1, false, first; second
field: dead, 1, false, the payload does not decode: field "cents" is a string, and int64 is wanted
number: dead, 1, false, the payload does not decode: field "cents" is a number, and int64 is wanted
syntax: dead, 1, false, the payload does not decode: no JSON, at byte 9
died: handled, 1, false, null
demoted: handled, 1, false, null
mixed: key "d" is for schema "other", and others are for "": enqueue them by themselves
many: true true [0 0] true
"#;

#[tokio::test]
async fn go() {
    let Some(programs) = Programs::of("go") else { return };
    let env = TestEnv::new().await;
    let mut program = Command::new(programs.file("endings"));
    program.env("DATABASE_URL", env.database_url()).kill_on_drop(true);
    let output = timeout(LIMIT, program.output()).await.expect("the program ends").unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), GO, "{log}");
    assert!(log.contains("the tracer panicked"), "{log}");
    let sent = "SELECT concat_ws(' ', key, ordering_key, payload) FROM oncebox.message ORDER BY id";
    assert_eq!(lines(&env.pg().await, sent).await, [r"a o \x31", r"b \xff", r"c \x33"]);
}

/// Runs, failures and snoozes of a message that waits for an hour, after three strict consumers.
const RESTARTED: &str = "fails: 1 runs, 1 failures, 0 snoozes
snoozed: 1 runs, 0 failures, 1 snoozes
snoozes: retry, false, asked: snoozed: the ledger is closed
snoozes: dead, true, snoozed for too long, 1s: asked: snoozed: the ledger is closed
small: consumer small needs 2 connections at least, and MaxConns of the pool is 1: make it larger
stream: consumer none cannot begin: there is no stream NONE: make it with `oncebox relay --stream 'NONE=SUBJECTS'`: \
nats: API error: code=404 err_code=10059 description=stream not found
schema: consumer none cannot begin: the database has no schema nowhere of this version: make it with \
`oncebox migrate --database-url ..`: ERROR: schema \"nowhere\" does not exist (SQLSTATE 3F000)
mode: consumer none cannot begin: ERROR: scope \"snoozing:test\" claims its keys in the transaction of their \
handlers (SQLSTATE OB010): Use another scope, or stop its processes and call change_inbox_mode().
small: consumer none needs 2 connections at least, and MaxConns of the pool is 1: make it larger
told: 6 5 6
waits: true
";

#[tokio::test]
async fn a_restart_of_go_keeps_pauses_and_a_pool_that_is_too_small_is_told() {
    let Some(programs) = Programs::of("go") else { return };
    let env = TestEnv::new().await;
    let mut program = Command::new(programs.file("restarting"));
    program.env("DATABASE_URL", env.database_url()).env("NATS_URL", env.nats_url()).kill_on_drop(true);
    let output = timeout(LIMIT, program.output()).await.expect("the program ends").unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), RESTARTED, "{log}");
}

#[tokio::test]
async fn a_new_durable_of_go_begins_now_and_passes_over_delete_markers() {
    let Some(programs) = Programs::of("go") else { return };
    let env = TestEnv::new().await;
    env.stream().await;
    let postgres = env.pg().await;
    let tables = "CREATE TABLE effect (id bigserial, key text, n int); CREATE TABLE tried (key text, n int)";
    postgres.batch_execute(tables).await.unwrap();
    let jetstream = env.jetstream().await;
    let publish = async |name: &str, value: &str, payload: &str| {
        let mut headers = HeaderMap::new();
        headers.insert(name, value);
        let sent = jetstream.publish_with_headers(env.subject("a"), headers, payload.to_owned().into()).await;
        sent.unwrap().await.unwrap();
    };
    publish("Idempotency-Key", "old", r#"{"key": "old", "n": 0}"#).await;
    let environment = [
        ("DATABASE_URL", env.database_url().to_owned()),
        ("NATS_URL", env.nats_url().to_owned()),
        ("STREAM", env.name().to_owned()),
        ("ORDER", "now".to_owned()),
        ("BATCH", "1".to_owned()),
    ];
    let mut program = Program::start_file(&programs.file("ordering"), &[], &environment).await.unwrap();
    eventually("it begins", LIMIT, async || program.log().contains("the consumer starts").then_some(()))
        .await;
    publish("Nats-Marker-Reason", "MaxAge", "").await;
    publish("Idempotency-Key", "new", r#"{"key": "new", "n": 0}"#).await;
    let effects = async || lines(&postgres, "SELECT key FROM effect").await;
    eventually("the new one is handled", LIMIT, async || (!effects().await.is_empty()).then_some(())).await;
    program.stop().await.unwrap();
    assert_eq!(effects().await, ["new"]);
    assert_eq!(lines(&postgres, "SELECT reason FROM oncebox.dead_letter").await, [""; 0]);
}
