//! A dead message, or a dead letter, is edited and tried again as a new fact: once, in its place.

use oncebox_inbox::Outcome;
use oncebox_tests::{TestEnv, eventually};
use serde_json::Value;
use tokio_postgres::Client;

use crate::{
    inbox::{
        consumer::{Running, consumer, publish, settled},
        support::{Does, LIMIT, SCOPE, builder, count, effects, inbox, insert, message, stream_environment},
    },
    relay::{
        process::{run, run_ok},
        support::{assert_in_order, connect, drain, fresh_stream, stored, stream_config, values_of, with},
    },
};

/// Gives messages with odd numbers up.
fn evens() -> Does {
    Does::new(|cx, job| {
        Box::pin(async move {
            match job.n % 2 {
                0 => Ok(Outcome::done(insert(cx, &job).await?)),
                _ => Ok(Outcome::dead(format!("{} is odd", job.n))),
            }
        })
    })
}

pub(crate) async fn text(client: &Client, sql: &str) -> String {
    client.query_one(sql, &[]).await.unwrap().get::<_, Option<String>>(0).unwrap_or_default()
}

/// A file with a new payload, in a directory that goes with the test.
pub(crate) fn file(bytes: &[u8]) -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("payload");
    std::fs::write(&path, bytes).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (directory, path)
}

async fn edit_letter(env: &TestEnv, arguments: &[&str]) -> (i32, String, String) {
    let command = ["inbox", "dead", "edit", "--nats-url", env.nats_url(), "--note", "INC-7"];
    run(env.database_url(), &[&command, arguments].concat()).await
}

fn token(output: &str) -> &str {
    output.split_once("--confirm ").unwrap().1.trim()
}

#[tokio::test]
async fn an_edited_letter_is_handled_once_under_a_key_of_its_own() {
    let env = stream_environment().await;
    let (client, url) = (env.pg().await, env.database_url());
    // The other inbox has handled the message: it must not act on the edit.
    let other = builder(&env).scope("tests:other").build().unwrap();
    let other_handler = Does::effect();
    other.run(&other_handler, &message("k", 1)).await.unwrap();
    publish(&env.jetstream().await, env.subject("a"), "k", 1, None).await;
    let (inbox, handler) = (inbox(&env), evens());
    let running = Running::start(consumer(&env).await, inbox.clone(), handler.clone());
    eventually("it dies", LIMIT, async || (count(&env, "oncebox.dead_letter").await == 1).then_some(()))
        .await;
    settled(&env).await;

    let (_kept, payload) = file(br#"{"n":4}"#);
    let change = ["1", "--payload", &payload, "--header", "reason=secret-word"];
    let dry = ["inbox", "dead", "edit", "--dry-run"];
    let shown = run_ok(url, &[&dry[..], &change].concat()).await;
    for part in ["would become k:oncebox-edit-1", "-   \"n\": 1", "+   \"n\": 4", "+ reason: secret-word"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert_eq!(count(&env, "oncebox.audit").await, 0, "a dry run changes nothing");
    // The token confirms this change, and no other.
    let (_kept, wrong) = file(br#"{"n":6}"#);
    let (code, _, log) = edit_letter(&env, &["1", "--payload", &wrong, "--confirm", token(&shown)]).await;
    assert!(code == 1 && log.contains("has changed since it was shown"), "{log}");
    let (code, output, log) = edit_letter(&env, &[&change[..], &["--confirm", token(&shown)]].concat()).await;
    assert_eq!((code, output.as_str()), (0, "edited; its key is k:oncebox-edit-1\n"), "{log}");
    eventually("it is handled", LIMIT, async || (effects(&env).await == 2).then_some(())).await;
    settled(&env).await;
    running.stop().await;
    let keys = format!(
        "SELECT string_agg(key || ' ' || status, ', ' ORDER BY key) FROM oncebox.inbox WHERE scope = '{SCOPE}'"
    );
    assert_eq!(text(&client, &keys).await, "k dead, k:oncebox-edit-1 completed");
    // A copy of the old message is answered as before, and the other inbox answers the edit.
    assert!(format!("{:?}", inbox.run(&handler, &message("k", 1)).await.unwrap()).contains("Dead"));
    let again = other.run(&other_handler, &message("k:oncebox-edit-1", 4)).await.unwrap();
    assert!(format!("{again:?}").starts_with("Replayed"), "the outcome of k: {again:?}");
    assert_eq!((other_handler.runs(), effects(&env).await), (1, 2));

    let audit = "SELECT concat_ws(' ', action, note, scope, key, reason) FROM oncebox.audit";
    let audit = text(&client, audit).await;
    let sha256 = text(&client, r#"SELECT encode(sha256('{"n":4}'), 'hex')"#).await;
    assert!(
        audit.starts_with(&format!("edit INC-7 {SCOPE} k k:oncebox-edit-1; payload SHA-256 ")),
        "{audit}"
    );
    assert!(audit.ends_with(&format!("to {sha256}; headers changed: reason")), "{audit}");
    assert!(!audit.contains("secret-word"), "{audit}");
    // Sent at once, it cannot be taken back.
    let id = text(&client, "SELECT max(id)::text FROM oncebox.audit").await;
    let (code, _, log) = run(url, &["undo", &id]).await;
    assert!(code == 1 && log.contains("at once"), "{log}");
}

async fn enqueue(client: &Client, key: &str, subject: &str) -> Option<i64> {
    let sql = r#"SELECT oncebox.enqueue($1, $2, '{"n":1}', '{"h": "1"}', 'line')"#;
    client.query_one(sql, &[&key, &subject]).await.unwrap().get(0)
}

#[tokio::test]
async fn an_edited_message_takes_the_place_of_the_old_one() {
    let env = TestEnv::new().await;
    let (client, url) = (env.pg().await, env.database_url());
    let (taken, lost) = (env.subject("taken.>"), env.subject("lost"));
    let stream = fresh_stream(env.nats_url(), stream_config(env.name(), &taken)).await;
    let mut worker = connect(&with(&values_of(&env), [("attempts-max", "1")])).await.worker();
    for key in ["a", "b", "c"] {
        enqueue(&client, key, &lost).await;
    }
    drain(&mut worker).await;
    let dead = "SELECT concat_ws(' ', key, attempts, headers, payload, error, dead_at) FROM oncebox.parked WHERE key = 'a'";
    let before = text(&client, dead).await;
    let (_kept, payload) = file(b"\x00\xffsecret");
    let edit = [
        "outbox",
        "dead",
        "edit",
        "a",
        "--payload",
        &payload,
        "--header",
        "h=2",
        "--by",
        "mina",
        "--note",
        "INC-7",
        "--json",
    ];
    let done: Value = serde_json::from_str(&run_ok(url, &edit).await).unwrap();
    assert_eq!(done["key"], "a:oncebox-edit-1");

    // Until it is sent, it can be taken back, with its key.
    run_ok(url, &["undo", &done["undo"].to_string()]).await;
    assert_eq!(text(&client, dead).await, before);
    assert_eq!(
        text(
            &client,
            "SELECT string_agg(concat_ws(' ', lane >= 0, key), ',' ORDER BY id) FROM oncebox.message"
        )
        .await,
        "t a,t b,t c"
    );
    let done: Value = serde_json::from_str(&run_ok(url, &edit).await).unwrap();
    assert_eq!(done["key"], "a:oncebox-edit-2", "no key is given twice");
    assert_eq!(enqueue(&client, "a", &lost).await, None, "its producer does not send the old one again");

    let subjects = vec![taken, lost.clone()];
    let wide = async_nats::jetstream::stream::Config { subjects, ..stream_config(env.name(), "") };
    env.jetstream().await.update_stream(wide).await.unwrap();
    drain(&mut worker).await;
    let all = stored(&stream).await;
    assert_eq!(all.iter().map(|message| &*message.key).collect::<Vec<_>>(), ["a:oncebox-edit-2", "b", "c"]);
    assert_in_order(&all);
    let first = stream.get_raw_message(1).await.unwrap();
    assert_eq!((&first.payload[..], first.headers.get("h").unwrap().as_str()), (&b"\x00\xffsecret"[..], "2"));
    let (code, _, log) = run(url, &["undo", &done["undo"].to_string()]).await;
    assert!(code == 1 && log.contains("was sent, tried or given up since"), "{log}");

    // The log has the edited message: a proof and a replay take it, and no other.
    let verified =
        run_ok(url, &["outbox", "verify", "--stream", env.name(), "--nats-url", env.nats_url()]).await;
    assert!(!verified.contains("missing  a"), "{verified}");
    run_ok(url, &["outbox", "replay", "--key", "a:oncebox-edit-2"]).await;
    drain(&mut worker).await;
    assert_eq!(&stream.get_raw_message(4).await.unwrap().payload[..], b"\x00\xffsecret");
    let audit = text(&client, "SELECT string_agg(concat_ws(' ', action, operator, note, key, reason), E'\n' ORDER BY id) FROM oncebox.audit").await;
    assert!(
        audit.contains("edit mina INC-7 a a:oncebox-edit-2; payload SHA-256")
            && audit.contains("headers changed: h"),
        "{audit}"
    );
    assert!(!audit.contains("secret"), "{audit}");
}

/// A dead letter with these columns, and its id.
async fn letter(client: &Client, key: Option<&str>, headers: &str) -> String {
    let sql = "INSERT INTO oncebox.dead_letter (scope, tenant, key, subject, headers, payload, stream, stream_sequence, stored_at, deliveries, reason)
               VALUES ('s', '', $1, 'a', $2::text::jsonb, '', 'S', nextval('oncebox.message_id_seq'), now(), 1, 'no') RETURNING id::text";
    client.query_one(sql, &[&key, &headers]).await.unwrap().get(0)
}

#[tokio::test]
async fn what_an_edit_would_break_is_refused() {
    let env = TestEnv::new().await;
    let (client, url) = (env.pg().await, env.database_url());
    client.batch_execute("INSERT INTO oncebox.inbox (scope, tenant, key, fingerprint, status) VALUES ('s', '', 'used', '\\x01', 'completed')").await.unwrap();
    let own = r#"{"Idempotency-Key": "k", "Nats-Msg-Id": "i", "ce-id": "k", "a": "1", "b": ["1", "2"]}"#;
    for (key, headers, change, part) in [
        (Some("k"), own, "--header=a=1", "nothing is changed"),
        (Some("k"), own, "--header=nats-msg-id=x", "set by Oncebox or commands the broker"),
        (Some("k"), own, "--remove-header=ce-id", "set by Oncebox or commands the broker"),
        (Some("k"), own, "--header=Oncebox-Reply-To=x", "set by Oncebox or commands the broker"),
        (Some("k"), own, "--header=a= 2", "begins or ends with a blank"),
        (Some("k"), own, "--remove-header=c", "it has no header \"c\""),
        (
            Some("k"),
            r#"{"Idempotency-Key": "k", "in-reply-to": "j"}"#,
            "--header=a=2",
            "belongs to a conversation",
        ),
        (Some("k"), r#"{"id": "k"}"#, "--header=a=2", "is in none of its headers"),
        (
            Some("used"),
            r#"{"Idempotency-Key": "used"}"#,
            "--header=a=2",
            "has handled another message under the key",
        ),
        (None, "{}", "--header=a=2", "has no valid key"),
    ] {
        let id = letter(&client, key, headers).await;
        let (code, output, log) = run(url, &["inbox", "dead", "edit", &id, change, "--dry-run"]).await;
        assert!(code == 1 && output.is_empty() && log.contains(part), "{part}: {code} {output}{log}");
    }
    let (code, _, log) = run(url, &["inbox", "dead", "edit", "1", "--header=a=2"]).await;
    assert!(code == 64 && log.contains("--note"), "a reason is required: {log}");
    // Two at once: one has changed the message that the other has shown.
    let sql = "SELECT oncebox.edit_letter(1, '{\"Idempotency-Key\": \"k\"}', 'p', '\\x00', 'mina', 'n')";
    let error = client.batch_execute(sql).await.unwrap_err();
    assert!(
        error.to_string().contains("db error")
            && error.as_db_error().unwrap().message().contains("not the one that was shown"),
        "{error:?}"
    );
    assert_eq!(text(&client, "SELECT count(*)::text FROM oncebox.audit").await, "0");
}

/// Its body is empty, and says nothing.
#[tokio::test]
async fn the_digest_of_a_payload_in_a_bucket_is_shown_and_stays_in_the_audit() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let digest = async |payload: &str| {
        text(&client, &format!("SELECT encode(sha256(convert_to('{payload}', 'UTF8')), 'hex')")).await
    };
    let header = "SELECT 'SHA-256=' || translate(encode(sha256('large'), 'base64'), '+/', '-_')";
    let headers = serde_json::json!({
        "Idempotency-Key": "k", "Oncebox-Object": "b/n", "Oncebox-Object-Bytes": "5",
        "oncebox-object-digest": text(&client, header).await,
    });
    letter(&client, Some("k"), &headers.to_string()).await;
    let [old, new] = [digest("large").await, digest("smaller").await];
    let (_kept, payload) = file(b"smaller");
    let dry = ["inbox", "dead", "edit", "1", "--dry-run"];
    let shown = run_ok(env.database_url(), &[&dry[..], &["--payload", &payload]].concat()).await;
    let change = format!("payload: 5 bytes, SHA-256 {old}\n     to: 7 bytes, SHA-256 {new}\n");
    assert!(shown.contains(&change), "{shown}");
    let shown = run_ok(env.database_url(), &[&dry[..], &["--header", "a=1"]].concat()).await;
    assert!(shown.contains("payload: as it is"), "{shown}");

    for (payload, digests) in [("d.payload", [&old, &old]), ("'smaller'", [&old, &new])] {
        let edit = format!(
            "SELECT (oncebox.edit_letter(d.id, d.headers || '{{\"a\": \"1\"}}', {payload},
                     oncebox.content_digest(d.headers, d.payload), 'mina', 'n')).key
             FROM oncebox.dead_letter AS d"
        );
        text(&client, &edit).await;
        let reason = text(&client, "SELECT reason FROM oncebox.audit ORDER BY id DESC LIMIT 1").await;
        let [from, to] = digests;
        assert!(reason.contains(&format!("payload SHA-256 {from} to {to}; headers changed: a")), "{reason}");
        letter(&client, Some("k"), &headers.to_string()).await;
    }
}

/// The columns of an edited letter that is published, or run by its consumer.
#[tokio::test]
async fn an_edited_letter_keeps_its_payload_in_its_bucket_and_its_line() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let edit = "SELECT concat_ws(' ', e.key, e.edited_headers, e.edited_payload, e.is_in_line)
                FROM oncebox.dead_letter AS d,
                  oncebox.edit_letter(d.id, d.headers || '{\"a\": \"2\"}', PAYLOAD, oncebox.content_digest(d.headers, d.payload), 'mina', 'n') AS e
                WHERE d.key = 'k'";
    let large = r#"{"Nats-Msg-Id": "0123456789ab/AAAAAAAAAAAAAAAA/0/k", "ce-id": "k", "Oncebox-Object": "b/n", "ce-dataref": "x"}"#;
    letter(&client, Some("k"), large).await;
    let kept = text(&client, &edit.replace("PAYLOAD", "d.payload")).await;
    assert_eq!(
        kept,
        r#"k:oncebox-edit-1 {"a": "2", "ce-id": "k:oncebox-edit-1", "ce-dataref": "x", "Nats-Msg-Id": "k:oncebox-edit-1", "Oncebox-Object": "b/n"} \x f"#
    );
    letter(&client, Some("k"), large).await;
    let moved = text(&client, &edit.replace("PAYLOAD", "'p'")).await;
    assert_eq!(
        moved,
        r#"k:oncebox-edit-2 {"a": "2", "ce-id": "k:oncebox-edit-2", "Nats-Msg-Id": "k:oncebox-edit-2"} \x70 f"#
    );
    client.batch_execute("SELECT oncebox.register_scope('s'), oncebox.follow_lines('s', 9)").await.unwrap();
    letter(&client, Some("k"), r#"{"Idempotency-Key": "k", "Oncebox-Ordering-Key": "o"}"#).await;
    assert!(text(&client, &edit.replace("PAYLOAD", "'p'")).await.ends_with("\\x70 t"));
    let due = "SELECT concat_ws(' ', key, is_due, payload, headers ->> 'Idempotency-Key') FROM oncebox.inbox_behind";
    assert_eq!(text(&client, due).await, "k:oncebox-edit-3 t \\x70 k:oncebox-edit-3");
}
