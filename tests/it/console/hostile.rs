//! Texts that would be markup, payloads that no user may see, and rows that no program writes: on
//! every page.

use oncebox_tests::TestEnv;
use tokio_postgres::Client;

use super::support::Console;
use crate::operator::hostile::{outbox, spoil, tables};

pub(crate) const PAGES: &[&str] = &[
    "/",
    "/db/shop",
    "/db/shop/history",
    "/db/shop/proof",
    "/db/shop/proof?since=1h",
    "/db/shop/set-aside",
    "/db/shop/set-aside?kind=dead",
    "/db/shop/set-aside?kind=failing",
    "/db/shop/set-aside?kind=dead-letters",
    "/db/shop/sagas",
    "/db/shop/sagas?state=completed",
    "/db/shop/delayed",
    "/db/shop/pauses",
    "/db/shop/replays",
    "/db/shop/losses",
    "/db/shop/doctor",
    "/db/shop/audit",
    "/db/shop/letter?id=1",
    "/db/shop/edit?kind=dead-letters&id=1",
    "/db/shop/act?kind=dead&action=discard&all=1",
    "/db/shop/act?kind=dead-letters&action=discard&all=1",
    "/jobs",
    "/settings",
];

/// A key, and how addresses have it.
pub(crate) const KEY: (&str, &str) = ("<script>alert(1)</script>", "%3Cscript%3Ealert(1)%3C/script%3E");
/// A text in all fields that take one.
const TEXT: &str = r#""'><img src=x onerror=alert(1)><script>alert(1)</script>"#;
const ROWS: &str = r#"
SELECT oncebox.enqueue('{key}', 'a."<b"', 'payload{text}', jsonb_build_object('note', '{text}'), '{key}');
SELECT oncebox.enqueue_at('{later}', 'a."<b"', 'p', clock_timestamp() + interval '1 hour', '{}', '{key}');
INSERT INTO oncebox.dead_letter (scope, tenant, key, subject, headers, payload, deliveries, reason)
VALUES ('{text}', '{text}', '{key}', '{text}', jsonb_build_object('{text}', '{text}'), 'payload{text}', 1, '{text}');
INSERT INTO oncebox.inbox_attempt (scope, tenant, key, message, failures, begun, reason, failed_at, due_at, subject, touched_at)
VALUES ('{text}', '{text}', '{key}', 'm', 1, 1, '{text}', clock_timestamp(), clock_timestamp(), '{text}', clock_timestamp());
INSERT INTO oncebox.saga (type, business_id, key, version, fingerprint, state, direction, reason, data, began_with, scope)
VALUES ('{text}', '{text}', '{key}', 1, 'f', 'stuck', 'forward', '{text}', jsonb_build_object('a', 'payload{text}'), '', '{text}');
INSERT INTO oncebox.saga_step (saga_id, step, state, attempt, subject, payload, sent_at, reason)
SELECT id, '{text}', 'failed', 1, '{text}', '', clock_timestamp(), '{text}' FROM oncebox.saga;
INSERT INTO oncebox.pause (kind, value, subjects, reason, paused_by)
VALUES ('subject', '{text}', ARRAY['{text}'], '{text}', '{text}');
INSERT INTO oncebox.audit (operator, note, action, lane, message_id, key, reason)
VALUES ('{text}', '{text}', 'retry', 0, 1, '{key}', '{text}');
"#;

/// Writes rows of all kinds with these texts.
pub(crate) async fn fill(client: &Client) {
    // Checks of grammar are off: an operator may have changed a row by hand.
    client.batch_execute("SET session_replication_role = replica").await.unwrap();
    let rows = ROWS
        .replace("{key}", KEY.0)
        .replace("{later}", "<script>later")
        .replace("{text}", &TEXT.replace('\'', "''"));
    for statement in rows.split(";\n").filter(|statement| !statement.trim().is_empty()) {
        client.batch_execute(statement).await.unwrap_or_else(|error| panic!("{statement}: {error:?}"));
    }
}

#[tokio::test]
async fn no_text_of_a_database_becomes_markup_and_no_payload_is_shown_unasked() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    fill(&client).await;
    let of_key = ["/key?key=", "/find?q=", "/db/shop/message?key=", "/db/shop/saga?key="];
    let of_key = of_key.map(|path| format!("{path}{}", KEY.1));
    let echoes = [
        "/find?q=%22%3E%3Cimg%20src%3Dx%3E",
        "/db/shop/set-aside?reason=%22%3E%3Cimg%20src%3Dx%3E",
        "/db/shop/%3Cimg%20src%3Dx%3E",
        "/%3Cimg%20src%3Dx%3E",
        "/sign-in?next=%22%3E%3Cimg%20src%3Dx%3E",
    ];
    let paths = || PAGES.iter().copied().chain(of_key.iter().map(String::as_str)).chain(echoes);
    for arguments in [&["--allow-actions"][..], &["--show-payloads", "--allow-actions"]] {
        let console = Console::of(&env, arguments).await;
        console.row("shop", |row| row["seconds_ago"].is_number()).await;
        let mut shown = 0;
        for path in paths() {
            let page = console.get(path).await;
            assert!([200, 404].contains(&page.status), "{path}: {} {}", page.status, page.body);
            for markup in ["<img", "<script>", ".\"<b"] {
                assert!(!page.body.contains(markup), "{path}: {markup}: {}", page.body);
            }
            shown +=
                usize::from(["payload&quot;", r"payload\&quot;"].iter().any(|text| page.body.contains(text)));
        }
        assert_eq!(
            shown,
            if arguments.len() > 1 { 4 } else { 0 },
            "pages with a payload, a letter's twice, or data"
        );
    }
}

#[tokio::test]
async fn pages_survive_any_content_of_any_table() {
    let env = TestEnv::new().await;
    let pg = outbox(&env).await;
    let mut rows = 0;
    for are_accounts in [false, true] {
        rows += spoil(&pg, 0.3, &tables(&pg, are_accounts).await).await.len();
        let console = Console::of(&env, &["--show-payloads", "--allow-actions"]).await;
        console.row("shop", |row| row["level"] != "starting").await;
        let keys = ["m-0", "parked-0", "later", "2:order"];
        let of_keys = keys.iter().flat_map(|key| {
            ["/key?key=", "/find?q=", "/db/shop/message?key=", "/db/shop/saga?key="]
                .map(|path| format!("{path}{key}"))
        });
        for path in PAGES.iter().map(|path| (*path).to_owned()).chain(of_keys) {
            let page = console.get(&path).await;
            assert!([200, 404, 503].contains(&page.status), "{path}: {} {}", page.status, page.body);
            for mark in ["deserializ", "error retrieving column", "out of range"] {
                assert!(!page.body.contains(mark), "{path}: {mark}: {}", page.body);
            }
        }
        let log = console.stop().await;
        assert!(!log.contains("panicked"), "{log}");
    }
    assert!(rows > 150, "{rows} rows only");
}
