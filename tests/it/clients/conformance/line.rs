//! In strict order, each consumer has messages wait for a dead letter of their ordering key.

use oncebox_tests::{TestEnv, eventually};
use serde_json::json;
use tokio_postgres::Client;

use super::{
    super::{
        scenarios::{Sent, returns},
        shop::{LIMIT, lines},
    },
    own_key, publish,
};
use crate::relay::process::run_ok;

/// How each handler ends, in the order of the line.
const LINE: [(&str, &str); 4] =
    [("line-0", "dead"), ("line-1", "return"), ("line-2", "dead"), ("line-3", "return")];

/// The handlers that ran, in the order of their first runs; the messages that wait; the dead
/// letters. A handler may run once more, after another one that changed its session.
const STANDS: &str = "
SELECT coalesce((SELECT string_agg(name, ' ' ORDER BY first)
                 FROM (SELECT name, min(at) AS first FROM run WHERE name LIKE 'line-%' GROUP BY name) AS runs), '')
    || ' | ' || coalesce((SELECT string_agg(key, ' ' ORDER BY id) FROM oncebox.inbox_behind), '')
    || ' | ' || coalesce((SELECT string_agg(key, ' ' ORDER BY id) FROM oncebox.dead_letter WHERE key LIKE 'line-%'), '')";
/// A dead letter has come back after its retry.
const AGAIN: &str = "
SELECT 'again' FROM oncebox.audit AS a JOIN oncebox.dead_letter AS d ON d.id = a.message_id
WHERE a.action = 'retry' AND d.created_at > a.happened_at";

/// The first message dies. It dies again after a retry; each discard runs the line up to the next
/// one that dies.
pub(super) async fn walk(env: &TestEnv, client: &Client) {
    let of = |(name, ending): (&str, &str), line: &str| -> (String, Sent) {
        let mut sent = returns(name);
        sent.payload["do"] = json!(ending);
        (format!("{}Oncebox-Ordering-Key: {line}\r\n", own_key(name)), sent)
    };
    let mut sent: Vec<_> = LINE.iter().map(|one| of(*one, "line")).collect();
    sent.push(of(("beside", "return"), "another"));
    publish(env, sent.iter().map(|(headers, sent)| (headers.clone(), sent))).await;
    let beside = "SELECT 'run' FROM run WHERE name = 'beside'";
    eventually("another line goes on", LIMIT, async || lines(client, beside).await.pop()).await;
    let nats = ["--nats-url", env.nats_url()];
    let retry = [&["inbox", "dead", "retry", "--key", "line-0"][..], &nats].concat();
    for (command, expected) in [
        (&[][..], "line-0 | line-1 line-2 line-3 | line-0"),
        (&retry, "line-0 | line-1 line-2 line-3 | line-0"),
        (&["inbox", "dead", "discard", "--key", "line-0"], "line-0 line-1 line-2 | line-3 | line-2"),
        (&["inbox", "dead", "discard", "--key", "line-2"], "line-0 line-1 line-2 line-3 |  | "),
    ] {
        if !command.is_empty() {
            run_ok(env.database_url(), command).await;
        }
        if command.contains(&"retry") {
            eventually("it died again", LIMIT, async || lines(client, AGAIN).await.pop()).await;
        }
        let what = format!("a line after {command:?}: {expected}");
        eventually(&what, LIMIT, async || (lines(client, STANDS).await.concat() == expected).then_some(()))
            .await;
    }
}
