//! A discard comes back whole, to where its rows were, or not at all.

use std::process::Stdio;

use oncebox_tests::TestEnv;
use serde_json::Value;
use tokio::{io::AsyncWriteExt as _, process::Command};
use tokio_postgres::Client;

use crate::relay::{
    process::{program, run, run_ok},
    support::{assert_delivered, connect, drain, fresh_stream, stored, stream_config, values_of, with},
};

/// Letters of every form: text, any bytes, 3 MiB, in a bucket, without a key, in no stream.
const LETTERS: &str = r#"
INSERT INTO oncebox.dead_letter
  (scope, tenant, key, subject, headers, payload, stream, stream_sequence, stored_at, deliveries, reason, fingerprint)
VALUES
  ('s', '', 'k1', 'a', '{"h": ["1", "2"]}', '{"n": 1}', 'S', 9007199254740993, '2026-01-01 00:00:00.123456Z', 20, 'no table', NULL),
  ('s', 't', 'k2', 'a', '{}', '\x00ff', NULL, NULL, NULL, 1, E'no\nmoney', NULL),
  ('s', '', 'k3', 'a', '{}', decode(repeat('ab', 3145728), 'hex'), NULL, NULL, NULL, 1, 'large', NULL),
  ('s', '', 'k4', 'a', '{"Oncebox-Object": "bucket/name"}', '', NULL, NULL, NULL, 1, 'elsewhere', '\x01'),
  ('s', '', NULL, 'a', '{}', 'p', 'S', 8, '2026-01-01Z', 1, 'no key', NULL)"#;

async fn text(client: &Client, sql: &str) -> String {
    client.query_one(sql, &[]).await.unwrap().get::<_, Option<String>>(0).unwrap_or_default()
}

async fn letters(client: &Client) -> String {
    text(client, "SELECT md5(string_agg(d::text, ' ' ORDER BY d.id)) FROM oncebox.dead_letter AS d").await
}

async fn count(client: &Client, table: &str) -> i64 {
    client.query_one(&format!("SELECT count(*) FROM oncebox.{table}"), &[]).await.unwrap().get(0)
}

/// Discards; returns the row of the audit by which that is undone.
async fn discard(url: &str, command: &[&str]) -> String {
    let output = run_ok(url, &[command, &["--by", "mina", "--json"]].concat()).await;
    serde_json::from_str::<Value>(&output).unwrap()["undo"].to_string()
}

async fn refused(url: &str, id: &str, part: &str) {
    let (code, output, log) = run(url, &["undo", id]).await;
    assert!(code == 1 && output.is_empty() && log.contains(part), "{part}: {code} {output}{log}");
    let (code, output, _) = run(url, &["undo", id, "--dry-run"]).await;
    assert!(code == 1 && output.contains(part), "{part}: {code} {output}");
}

#[tokio::test]
async fn discarded_letters_come_back_as_they_were_and_once() {
    let env = TestEnv::new().await;
    let (client, url) = (env.pg().await, env.database_url());
    client.batch_execute(LETTERS).await.unwrap();
    let before = letters(&client).await;
    let id = discard(url, &["inbox", "dead", "discard", "--all"]).await;
    assert_eq!((count(&client, "dead_letter").await, count(&client, "kept").await), (0, 5));
    let rows = run_ok(url, &["undo", &id, "--dry-run", "--json"]).await;
    assert_eq!(rows.lines().count(), 5, "{rows}");
    assert_eq!(count(&client, "dead_letter").await, 0, "a dry run changes nothing");
    let done = run_ok(url, &["undo", &id, "--by", "rob", "--note", "INC-7"]).await;
    assert_eq!(done, "brought back 5 messages\n");
    assert_eq!((letters(&client).await, count(&client, "kept").await), (before, 0));
    let undone = "SELECT string_agg(concat_ws(' ', u.action, u.operator, u.note, d.action, d.operator, u.message_id = d.message_id), ',')
                  FROM oncebox.audit AS u JOIN oncebox.audit AS d ON d.id = u.undoes";
    assert_eq!(text(&client, undone).await, ["undo rob INC-7 discard mina t"; 5].join(","));
    refused(url, &id, "rob brought it back at").await;
    // Each command is undone by itself.
    let first = discard(url, &["inbox", "dead", "discard", "--id", "1"]).await;
    discard(url, &["inbox", "dead", "discard", "--id", "2"]).await;
    run_ok(url, &["undo", &first]).await;
    assert_eq!(
        text(&client, "SELECT string_agg(id::text, ' ' ORDER BY id) FROM oncebox.dead_letter").await,
        "1 3 4 5"
    );
    let (code, _, log) = run(url, &["undo", "999"]).await;
    assert!(code == 1 && log.contains("row 999 of the audit is no discard"), "{log}");
}

#[tokio::test]
async fn letters_whose_keys_moved_on_keep_their_whole_discard_away() {
    let env = TestEnv::new().await;
    let (client, url) = (env.pg().await, env.database_url());
    client.batch_execute(LETTERS).await.unwrap();
    let id = discard(url, &["inbox", "dead", "discard", "--all"]).await;
    let moved = [
        ("INSERT INTO oncebox.inbox (scope, tenant, key, fingerprint, status) VALUES ('s', 't', 'k2', '\\x01', 'completed')",
         "DELETE FROM oncebox.inbox", "its key was settled again since, as completed"),
        ("INSERT INTO oncebox.dead_letter (scope, tenant, key, subject, headers, payload, deliveries, reason)
          VALUES ('s', '', 'k3', 'a', '{}', '', 1, 'again')",
         "DELETE FROM oncebox.dead_letter", "a message of its key died since: dead letter 6"),
        ("INSERT INTO oncebox.dead_letter (scope, tenant, subject, headers, payload, stream, stream_sequence, stored_at, deliveries, reason)
          VALUES ('s', '', 'a', '{}', '', 'S', 8, '2026-01-01Z', 1, 'again')",
         "DELETE FROM oncebox.dead_letter", "a copy of it died again: dead letter 7"),
        ("INSERT INTO oncebox.inbox_attempt (scope, tenant, key, message, failures) VALUES ('s', '', 'k4', 'm', 1)",
         "DELETE FROM oncebox.inbox_attempt", "a message of its key is failing"),
        ("INSERT INTO oncebox.inbox_claim (scope, tenant, key, fingerprint, owner, lease_until)
          VALUES ('s', '', 'k4', '\\x01', gen_random_uuid(), now())",
         "DELETE FROM oncebox.inbox_claim", "a message of its key is being handled"),
        ("UPDATE oncebox.kept SET kept_at = kept_at - interval '25 hours' WHERE id = 4",
         "UPDATE oncebox.kept SET kept_at = now()", "it is not kept"),
    ];
    for (change, back, part) in moved {
        client.batch_execute(change).await.unwrap();
        refused(url, &id, part).await;
        assert_eq!(count(&client, "kept").await, 5, "none came back");
        client.batch_execute(back).await.unwrap();
    }
    // Another key, tenant or inbox is not in the way.
    client
        .batch_execute(
            "INSERT INTO oncebox.inbox (scope, tenant, key, fingerprint, status)
                        VALUES ('s', 'u', 'k1', '\\x01', 'completed'), ('z', '', 'k1', '\\x01', 'completed')",
        )
        .await
        .unwrap();
    assert_eq!(run_ok(url, &["undo", &id]).await, "brought back 5 messages\n");
}

async fn enqueue(client: &Client, key: &str, subject: &str) {
    client.execute("SELECT oncebox.enqueue($1, $2, 'p', '{}', 'line')", &[&key, &subject]).await.unwrap();
}

#[tokio::test]
async fn a_discarded_message_comes_back_before_those_of_its_ordering_key_or_not_at_all() {
    let env = TestEnv::new().await;
    let (client, url) = (env.pg().await, env.database_url());
    let stream = fresh_stream(env.nats_url(), stream_config(env.name(), &env.subject("taken.>"))).await;
    let (lost, taken) = (env.subject("lost"), env.subject("taken.a"));
    let mut worker = connect(&with(&values_of(&env), [("attempts-max", "1")])).await.worker();
    for (key, subject) in [("a", &lost), ("b", &lost), ("c", &lost)] {
        enqueue(&client, key, subject).await;
    }
    drain(&mut worker).await;
    let set_aside = "SELECT string_agg(concat_ws(' ', key, attempts, dead_at, error, parked_at), ',' ORDER BY id) FROM oncebox.parked";
    let before = text(&client, set_aside).await;
    let dead = ["outbox", "dead", "discard", "--key"];
    let parked = ["outbox", "parked", "discard", "--key"];
    let first = discard(url, &[&dead[..], &["a"]].concat()).await;
    let second = discard(url, &[&parked[..], &["b"]].concat()).await;
    // In the order in which they went, the second is gone: a could overtake the message after it.
    refused(url, &first, "waited behind it, and has been sent or given up since").await;
    run_ok(url, &["undo", &second]).await;
    run_ok(url, &["undo", &first]).await;
    assert_eq!((text(&client, set_aside).await, count(&client, "discarded").await), (before, 0));
    // All of a key at once.
    let rest = discard(url, &["outbox", "parked", "discard", "--all"]).await;
    run_ok(url, &["undo", &rest]).await;
    let subjects = [env.subject("taken.>"), lost.clone()];
    let wide = async_nats::jetstream::stream::Config {
        subjects: subjects.to_vec(),
        ..stream_config(env.name(), "")
    };
    env.jetstream().await.update_stream(wide).await.unwrap();
    run_ok(url, &["outbox", "dead", "retry", "--all"]).await;
    drain(&mut worker).await;
    assert_eq!(assert_delivered(&stored(&stream).await, &["a", "b", "c"].map(str::to_owned)), 0);

    // A later message has been sent: one that waited, and one that was enqueued afterwards.
    let nowhere = env.subject("nowhere");
    enqueue(&client, "d", &nowhere).await;
    enqueue(&client, "e", &taken).await;
    drain(&mut worker).await;
    let id = discard(url, &[&dead[..], &["d"]].concat()).await;
    drain(&mut worker).await;
    refused(url, &id, "waited behind it, and has been sent or given up since").await;
    enqueue(&client, "f", &nowhere).await;
    drain(&mut worker).await;
    let id = discard(url, &[&dead[..], &["f"]].concat()).await;
    enqueue(&client, "g", &taken).await;
    run_ok(url, &["undo", &id, "--dry-run"]).await;
    drain(&mut worker).await;
    refused(url, &id, "a later message of its ordering key, id ").await;
    client.execute("INSERT INTO oncebox.relay (dead_blocks) VALUES (false)", &[]).await.unwrap();
    run_ok(url, &["undo", &id]).await; // Dead messages block nothing there.
    // Without an ordering key it comes back, and is tried again at once.
    client.execute("SELECT oncebox.enqueue('h', $1, 'p')", &[&nowhere]).await.unwrap();
    let patient = connect(&values_of(&env)).await;
    drain(&mut patient.worker()).await;
    let id = discard(url, &[&parked[..], &["h"]].concat()).await;
    run_ok(url, &["undo", &id]).await;
    let due = "SELECT string_agg(key, ' ') FROM oncebox.parked WHERE next_attempt_at <= clock_timestamp()";
    assert_eq!(text(&client, due).await, "h");
}

#[tokio::test]
async fn what_was_discarded_is_kept_for_a_day_and_within_bounds() {
    let env = TestEnv::new().await;
    let (client, url) = (env.pg().await, env.database_url());
    client.batch_execute(LETTERS).await.unwrap();
    discard(url, &["inbox", "dead", "discard", "--id", "1"]).await;
    let old = "UPDATE oncebox.kept SET kept_at = kept_at - interval '25 hours'";
    client.batch_execute(old).await.unwrap();
    connect(&values_of(&env)).await.maintainer().run_once().await.unwrap();
    assert_eq!(count(&client, "kept").await, 0, "a relay forgets it");
    discard(url, &["inbox", "dead", "discard", "--id", "2"]).await;
    client.batch_execute(old).await.unwrap();
    client.query("SELECT * FROM oncebox.sweep_inboxes()", &[]).await.unwrap();
    assert_eq!(count(&client, "kept").await, 0, "so do consumers, where there is no relay");
    let many = "INSERT INTO oncebox.kept (audit, origin, id, bytes, columns, payload)
                SELECT n, 'dead_letter', n, $1::bigint, '{}', '' FROM generate_series(-100010, -1) AS n";
    client.execute(many, &[&1_i64]).await.unwrap();
    discard(url, &["inbox", "dead", "discard", "--id", "3"]).await;
    assert_eq!(count(&client, "kept").await, 100_001, "the newest, and those of this batch");
    client.batch_execute("TRUNCATE oncebox.kept").await.unwrap();
    client.execute(many, &[&(1_i64 << 28)]).await.unwrap();
    discard(url, &["inbox", "dead", "discard", "--id", "4"]).await;
    assert_eq!(count(&client, "kept").await, 5, "1 GiB");
}

/// Python's standard library has a terminal.
const TERMINAL: &str = "
import os, pty, sys
child, terminal = pty.fork()
if child == 0: os.execv(sys.argv[1], sys.argv[1:])
os.write(terminal, sys.stdin.buffer.read())
try:
    while data := os.read(terminal, 4096): sys.stdout.buffer.write(data)
except OSError: pass
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))";

async fn typed(env: &TestEnv, text: &str, command: &[&str]) -> (i32, String) {
    let mut child = Command::new("python3")
        .args(["-c", TERMINAL])
        .arg(program())
        .args(command)
        .env("DATABASE_URL", env.database_url())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).await.unwrap();
    let output = child.wait_with_output().await.unwrap();
    (output.status.code().unwrap(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[tokio::test]
async fn on_a_terminal_a_command_that_destroys_waits_for_its_word() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    client.batch_execute(LETTERS).await.unwrap();
    let command = ["inbox", "dead", "discard", "--id", "1"];
    for wrong in ["yes\n", "\n"] {
        let (code, output) = typed(&env, wrong, &command).await;
        assert!(code == 64 && output.contains("discard was not typed; nothing was done"), "{code} {output}");
        assert_eq!(count(&client, "dead_letter").await, 5);
    }
    let (code, output) = typed(&env, "discard\n", &command).await;
    assert!(
        code == 0 && output.contains("Type discard to go on") && output.contains("oncebox undo "),
        "{output}"
    );
    let (code, output) = typed(&env, "", &["inbox", "dead", "discard", "--id", "2", "--yes"]).await;
    assert!(code == 0 && !output.contains("Type"), "{output}");
    assert_eq!(count(&client, "dead_letter").await, 3);
}

/// The messages that waited for it have run since its discard.
#[tokio::test]
async fn a_letter_that_stopped_a_line_stays_discarded() {
    let env = TestEnv::new().await;
    let (client, url) = (env.pg().await, env.database_url());
    let letter = r#"SELECT oncebox.register_scope('billing:charge'), oncebox.follow_lines('billing:charge', 5);
        INSERT INTO oncebox.dead_letter (scope, tenant, key, subject, headers, payload, stream, stream_sequence, stored_at, deliveries, reason)
        VALUES ('billing:charge', '', 'k', 'a', '{"Oncebox-Ordering-Key": "o"}', 'p', 'S', 1, '2026-01-01Z', 1, 'no table')"#;
    client.batch_execute(letter).await.unwrap();
    assert_eq!(text(&client, "SELECT ordering_key FROM oncebox.dead_letter").await, "o");
    let id = discard(url, &["inbox", "dead", "discard", "--all"]).await;
    refused(url, &id, "messages of its ordering key may have run since").await;
}
