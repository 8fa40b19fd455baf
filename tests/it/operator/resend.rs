//! `outbox resend`: the number that a dry run shows is the number that is sent, and the audit has
//! it.

use oncebox_tests::TestEnv;
use serde_json::{Value, json};
use tokio_postgres::Client;

use crate::relay::{
    process::{run, run_ok},
    support::{connect, drain, enqueue, fresh_stream, stored, stream_config, values_of},
};

const NOW: &str = "SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')";
/// As relays write it, for each lane.
const MILESTONE: &str = "INSERT INTO oncebox.milestone (lane, number, floor, high, snap, system_identifier)
    SELECT lane, number, floor, high, snap, system_identifier FROM oncebox.lane_cursor
    ON CONFLICT ON CONSTRAINT milestone_pkey DO UPDATE SET reached_at = excluded.reached_at";

async fn now(client: &Client) -> String {
    client.query_one(NOW, &[]).await.unwrap().get(0)
}

/// The answer of a dry run, as JSON.
async fn dry(url: &str, command: &[&str]) -> Value {
    let text = run_ok(url, &[command, &["--dry-run", "--json"]].concat()).await;
    serde_json::from_str(&text).unwrap()
}

/// The rows of the audit: how many messages, and why.
async fn audit(client: &Client) -> Vec<String> {
    let sql = "SELECT concat_ws(' ', operator, action, messages, regexp_replace(reason, '20\\S+Z', 'TIME'))
               FROM oncebox.audit ORDER BY operator, messages";
    client.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn since_a_time_the_shown_messages_are_sent_and_the_audit_has_their_number() {
    let env = TestEnv::new().await;
    let (client, url) = (env.pg().await, env.database_url());
    let (config, subject) = (stream_config(env.name(), &env.subject(">")), env.subject("a"));
    let lose = async || fresh_stream(env.nats_url(), config.clone()).await;
    lose().await;
    let relay = connect(&values_of(&env)).await;
    let mut worker = relay.worker();
    // Messages that are settled after `since` were enqueued before it.
    enqueue(&client, &subject, "old-", 0..2, 1).await;
    drain(&mut worker).await;
    client.batch_execute(MILESTONE).await.unwrap();
    enqueue(&client, &subject, "new-", 0..3, 1).await;
    let since = now(&client).await;
    drain(&mut worker).await;
    assert_eq!(relay.recovery().run_once().await.unwrap(), 0, "nothing is lost yet");
    let stream = lose().await;
    assert!(relay.recovery().run_once().await.unwrap() > 0);

    let resend = ["outbox", "resend", "--stream", env.name(), "--since", &since, "--by", "mina"];
    let shown = dry(url, &resend).await;
    assert_eq!((&shown["messages"], &shown["given_up"]), (&json!(3), &json!(2)), "{shown}");
    assert!(shown["since"].is_string(), "{shown}");
    let told = run_ok(url, &[&resend[..], &["--dry-run"]].concat()).await;
    assert!(
        told.contains("would resend 3 messages\nall that was settled since the milestone of 20"),
        "{told}"
    );
    assert!(told.contains("2 messages settled before are given up"), "{told}");
    // An older milestone would send more than was shown.
    let token = shown["confirm"].as_str().unwrap();
    let confirmed = [&resend[..], &["--confirm", token]].concat();
    client
        .batch_execute("UPDATE oncebox.milestone SET reached_at = reached_at + interval '1 h'")
        .await
        .unwrap();
    let (code, _, log) = run(url, &confirmed).await;
    assert!(code == 1 && log.contains("has changed since it was shown"), "{log}");
    client
        .batch_execute("UPDATE oncebox.milestone SET reached_at = reached_at - interval '1 h'")
        .await
        .unwrap();
    let sent = run_ok(url, &confirmed).await;
    assert!(sent.starts_with("asked the relays to send again 3 messages\n"), "{sent}");
    drain(&mut worker).await;
    let keys: Vec<String> = stored(&stream).await.into_iter().map(|message| message.key).collect();
    assert_eq!(keys, ["new-0", "new-1", "new-2"]);
    let lost = format!("lost by stream {}", env.name());
    // Of the other lane, all is given up.
    let both = [0, 3].map(|sent| format!("mina resend {sent} {lost} since TIME"));
    assert_eq!(audit(&client).await, both);

    // Another loss, of which nothing is to be sent: it is closed, and recorded.
    client.batch_execute(MILESTONE).await.unwrap();
    let stream = lose().await;
    assert!(relay.recovery().run_once().await.unwrap() > 0);
    let resend = ["outbox", "resend", "--stream", env.name(), "--since", &now(&client).await];
    assert_eq!(dry(url, &resend).await["messages"], 0);
    let sent = run_ok(url, &resend).await;
    assert!(sent.starts_with("asked the relays to send again 0 messages\n"), "{sent}");
    let closed = audit(&client).await.into_iter().filter(|row| row.starts_with("resend "));
    let closed: Vec<String> = closed.collect();
    assert!(
        !closed.is_empty() && closed.iter().all(|row| *row == format!("resend 0 {lost} since TIME")),
        "{closed:?}"
    );
    drain(&mut worker).await;
    assert_eq!(stored(&stream).await.len(), 0);
    let (code, _, log) = run(url, &resend).await;
    assert!(code == 1 && log.contains("sent again already"), "{log}");
}
