//! Events for programs: trouble becomes a message in the transaction that records it, if an
//! operator has chosen its kind.

use std::collections::BTreeMap;

use async_nats::jetstream::stream::Stream;
use oncebox_relay::Values;
use oncebox_tests::{Nats, TestEnv, eventually};
use serde_json::Value;

use super::sagas::SAGAS;
use crate::relay::{
    process::{run, run_ok},
    support::{LIMIT, connect, drain, fresh_stream, stream_config, values, with},
};

/// A server of its own, since all databases send events with the same subjects.
async fn environment() -> (TestEnv, Nats, Stream, Values) {
    let (env, nats) = (TestEnv::new().await, Nats::start().await.unwrap());
    let stream = fresh_stream(&nats.url(), stream_config("EVENTS", "oncebox.events.>")).await;
    let values = with(&values(env.database_url(), &nats.url()), [("attempts-max", "2")]);
    (env, nats, stream, values)
}

async fn events(env: &TestEnv, arguments: &[&str]) -> String {
    run_ok(env.database_url(), &[&["events"], arguments].concat()).await
}

/// Trouble of each kind but `parked` and `dead`, which the relay has to meet by itself.
const TROUBLE: &str = r#"
SELECT oncebox.bury('mail', 'k-1', 'p', 'no account', 'orders.placed');
SELECT oncebox.bury('bell', 'k-2', 'p', 'it is about an event', 'oncebox.events.dead');
INSERT INTO oncebox.loss (lane, stream, number, kind, sequence, lost_sequence, floor, high, snap)
VALUES (3, 'ORDERS', 1, 'tail', 5, 9, 0, 0, pg_current_snapshot());
UPDATE oncebox.saga SET state = 'running' WHERE key = '2:order';
UPDATE oncebox.saga SET state = 'stuck', reason = 'ship: again no answer' WHERE key = '2:order';
UPDATE oncebox.saga SET state = 'stuck', due_at = NULL WHERE key = '2:order';
"#;

#[tokio::test]
async fn trouble_of_each_chosen_kind_is_a_message_and_trouble_with_events_is_not() {
    let (env, _nats, stream, values) = environment().await;
    let client = env.pg().await;
    client.batch_execute(SAGAS).await.unwrap();
    client.batch_execute(TROUBLE).await.unwrap();
    let said = events(&env, &["enable", "--all", "--by", "mina"]).await;
    assert!(said.starts_with("enabled ") && said.contains("dead-letter"), "{said}");
    assert_eq!(events(&env, &["enable", "dead", "stuck"]).await, "they were enabled before\n");
    client
        .batch_execute("DELETE FROM oncebox.loss; DELETE FROM oncebox.dead_letter; DELETE FROM oncebox.inbox")
        .await
        .unwrap();
    client.batch_execute(TROUBLE).await.unwrap();
    for command in [
        "throttle --subject orders.> --rate 5 --unseen",
        "pause --subject orders.> --unseen",
        "resume --subject orders.>",
    ] {
        run_ok(env.database_url(), &[&["outbox"][..], &command.split(' ').collect::<Vec<_>>()].concat())
            .await;
    }
    client.execute("SELECT oncebox.enqueue('lost', 'nobody.takes', 'p', '{}', 'k')", &[]).await.unwrap();
    client.execute("SELECT oncebox.enqueue('behind', 'nobody.takes', 'p', '{}', 'k')", &[]).await.unwrap();
    let mut worker = connect(&values).await.worker();
    let mut sent = BTreeMap::<String, Vec<Value>>::new();
    eventually("all events are sent", LIMIT, async || {
        drain(&mut worker).await;
        client
            .batch_execute(
                "UPDATE oncebox.parked SET next_attempt_at = now() WHERE next_attempt_at IS NOT NULL",
            )
            .await
            .unwrap();
        (stream.get_info().await.unwrap().state.messages >= 9).then_some(())
    })
    .await;
    drain(&mut worker).await;
    for sequence in 1..=stream.get_info().await.unwrap().state.messages {
        let message = stream.get_raw_message(sequence).await.unwrap();
        let event: Value = serde_json::from_slice(&message.payload).unwrap();
        assert_eq!(message.subject.as_str(), format!("oncebox.events.{}", event["event"].as_str().unwrap()));
        assert_eq!(event["database"], env.name());
        sent.entry(message.subject.to_string()).or_default().push(event);
    }
    let told = |kind: &str, fields: &[&str]| -> Vec<String> {
        let events = sent[&format!("oncebox.events.{kind}")].iter();
        events
            .map(|event| fields.iter().map(|field| event[field].to_string()).collect::<Vec<_>>().join(" "))
            .collect()
    };
    assert_eq!(
        told("parked", &["key", "subject", "ordering_key", "cause"]),
        [r#""lost" "nobody.takes" "k" "no-stream""#]
    );
    assert_eq!(told("dead", &["key", "attempts"]), [r#""lost" 2"#]);
    assert_eq!(told("loss", &["stream", "stored_sequence", "acknowledged_sequence"]), [r#""ORDERS" 5 9"#]);
    assert_eq!(told("dead-letter", &["inbox", "key", "reason"]), [r#""mail" "k-1" "no account""#]);
    assert_eq!(told("stuck", &["type", "business_id", "reason"]), [r#""order" "2" "ship: again no answer""#]);
    let mut pauses = told("pause", &["action", "value", "rate"]);
    pauses.sort();
    let (paused, resumed) = (r#""paused" "orders.>" null"#, r#""resumed" "orders.>" null"#);
    assert_eq!(pauses, [paused, r#""resumed" "orders.>" 5"#, resumed, r#""throttled" "orders.>" 5"#]);
}

#[tokio::test]
async fn events_are_opted_into_and_out_of_and_never_hold_delivery_up() {
    let (env, _nats, stream, values) = environment().await;
    let client = env.pg().await;
    let (code, _, log) = run(env.database_url(), &["events", "enable", "death"]).await;
    assert!(code == 64 && log.contains("parked, dead, loss, pause, dead-letter, stuck"), "{code}: {log}");
    assert!(events(&env, &["list"]).await.lines().skip(1).all(|line| line.ends_with("not sent")));
    assert_eq!(events(&env, &["enable", "parked", "dead"]).await, "enabled dead, parked\n");
    assert_eq!(events(&env, &["disable", "parked", "--note", "INC-7"]).await, "disabled parked\n");
    let listed = events(&env, &["list", "--json"]).await;
    assert!(
        listed.contains(r#"{"kind":"dead","sent":true}"#) && listed.matches("true").count() == 1,
        "{listed}"
    );
    // Not even an event can be enqueued.
    let refuse = "ALTER TABLE oncebox.message_0 ADD CONSTRAINT none CHECK (subject NOT LIKE 'oncebox.%')";
    client.batch_execute(refuse).await.unwrap();
    client.execute("SELECT oncebox.enqueue('k', 'nobody.takes', 'p')", &[]).await.unwrap();
    let mut worker = connect(&with(&values, [("attempts-max", "1")])).await.worker();
    drain(&mut worker).await;
    let dead: i64 = client
        .query_one("SELECT count(*) FROM oncebox.parked WHERE dead_at IS NOT NULL", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(dead, 1, "it is recorded, with its event or without");
    client.batch_execute("ALTER TABLE oncebox.message_0 DROP CONSTRAINT none").await.unwrap();
    client.execute("SELECT oncebox.enqueue('l', 'nobody.takes', 'p')", &[]).await.unwrap();
    eventually("the event is sent", LIMIT, async || {
        drain(&mut worker).await;
        (stream.get_info().await.unwrap().state.messages == 1).then_some(())
    })
    .await;
    let audit =
        "SELECT string_agg(concat_ws(' ', action, note, reason), ', ' ORDER BY id) FROM oncebox.audit";
    let audit: String = client.query_one(audit, &[]).await.unwrap().get(0);
    assert_eq!(audit, "enable-events dead parked, disable-events INC-7 parked");
}
