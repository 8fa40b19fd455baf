//! A token of a dry run confirms the sagas, settled messages and losses that it showed, and no
//! other.

use oncebox_tests::{TestEnv, eventually};
use serde_json::Value;

use super::sagas::SAGAS;
use crate::relay::{
    process::{run, run_ok},
    support::{
        LIMIT, Running, assert_delivered, await_messages, connect, drain, enqueue, fresh_stream, stored,
        stream_config, values_of,
    },
};

/// The token of a dry run, and the number of things that it showed.
async fn dry(url: &str, command: &[&str], things: &str) -> (String, u64) {
    let text = run_ok(url, &[command, &["--dry-run", "--json"]].concat()).await;
    let document: Value = serde_json::from_str(&text).unwrap();
    let token = document["confirm"].as_str().unwrap_or_else(|| panic!("{command:?}: no token: {document}"));
    (token.to_owned(), document[things].as_u64().unwrap())
}

async fn confirm(url: &str, command: &[&str], token: &str) -> (i32, String) {
    let (code, text, log) = run(url, &[command, &["--confirm", token]].concat()).await;
    (code, text + &log)
}

#[tokio::test]
async fn sagas_that_have_changed_since_a_dry_run_are_left_alone() {
    let env = TestEnv::new().await;
    let (client, url) = (env.pg().await, env.database_url());
    client.batch_execute(SAGAS).await.unwrap();
    let retry = ["saga", "retry", "--type", "order", "--state", "stuck"];
    let (token, sagas) = dry(url, &retry, "sagas").await;
    assert_eq!(sagas, 2);
    let other = confirm(url, &["saga", "retry", "--type", "refund"], &token).await;
    assert!(other.0 == 1 && other.1.contains("has changed since it was shown"), "{other:?}");
    // Another one waits since: it stays.
    let stuck = "UPDATE oncebox.saga SET state = 'stuck', changed_at = clock_timestamp() WHERE key = '1:order';
                 INSERT INTO oncebox.saga_step (saga_id, step, state, attempt, subject, payload, sent_at)
                 SELECT id, 'ship', 'failed', 1, 'do.ship', '', clock_timestamp() FROM oncebox.saga WHERE key = '1:order'";
    client.batch_execute(stuck).await.unwrap();
    let (code, text) = confirm(url, &retry, &token).await;
    assert!(code == 0 && text.contains("asked for another attempt of 2 sagas"), "{text}");
    assert!(text.contains("1 row came since the dry run"), "{text}");
    let asked = "SELECT string_agg(key, ' ' ORDER BY key) FROM oncebox.audit WHERE action = 'retry'";
    let asked: String = client.query_one(asked, &[]).await.unwrap().get(0);
    assert_eq!(asked, "2:order 3:order");

    // One that was shown goes on: nothing is done. A token of one step is none of another.
    let abandon = ["saga", "abandon", "--type", "refund"];
    let (token, sagas) = dry(url, &abandon, "sagas").await;
    assert_eq!(sagas, 2);
    client
        .batch_execute("UPDATE oncebox.saga SET changed_at = clock_timestamp() WHERE key = '7:refund'")
        .await
        .unwrap();
    let (code, text) = confirm(url, &abandon, &token).await;
    assert!(code == 1 && text.contains("2 then, 1 of them now"), "{text}");
    let skip = |step| ["saga", "skip", "--state", "quarantined", "--step", step];
    let (token, _) = dry(url, &skip("charge"), "sagas").await;
    let (code, text) = confirm(url, &skip("ship"), &token).await;
    assert!(code == 1 && text.contains("has changed"), "{text}");
    let done = "SELECT count(*) FROM oncebox.audit WHERE action IN ('abandon', 'skip')";
    assert_eq!(client.query_one(done, &[]).await.unwrap().get::<_, i64>(0), 0);
}

#[tokio::test]
async fn messages_that_are_settled_since_a_dry_run_are_not_replayed() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let (client, url, subject) = (env.pg().await, env.database_url(), env.subject("a.x"));
    let mut worker = connect(&values_of(&env)).await.worker();
    enqueue(&client, &subject, "m-", 0..5, 2).await;
    drain(&mut worker).await;
    let replay = ["outbox", "replay", "--subject", &subject, "--since", "1h"];
    let (token, messages) = dry(url, &replay, "messages").await;
    assert_eq!(messages, 5);
    enqueue(&client, &subject, "later-", 0..3, 2).await;
    drain(&mut worker).await;
    let other = confirm(url, &["outbox", "replay", "--key", "m-1"], &token).await;
    assert!(other.0 == 1 && other.1.contains("has changed since it was shown"), "{other:?}");
    let (code, text) = confirm(url, &replay, &token).await;
    assert!(code == 0 && text.contains("asked the relays to replay 5 messages"), "{text}");
    assert!(text.contains("3 rows came since the dry run"), "{text}");
    drain(&mut worker).await;
    let copies = stored(&stream).await.split_off(8);
    assert!(copies.len() == 5 && copies.iter().all(|copy| copy.key.starts_with("m-")), "{copies:?}");
    let (code, text) = confirm(url, &replay, &token).await;
    assert!(code == 1 && text.contains("has changed since it was shown"), "once for each token: {text}");

    // A transaction is open while later messages are settled: a dry run shows those before it.
    let mut other = env.pg().await;
    let held = other.transaction().await.unwrap();
    let sql = "SELECT oncebox.enqueue('held', $1, 'p')";
    held.query_one(sql, &[&subject]).await.unwrap();
    enqueue(&client, &subject, "behind-", 0..2, 0).await;
    drain(&mut worker).await;
    let (code, text, log) = run(url, &[&replay[..], &["--dry-run"]].concat()).await;
    assert!(code == 0 && text.starts_with("would replay 10 messages\nto replay 8 of these"), "{text}{log}");
    assert!(log.contains("leaves out 2 messages of these"), "{log}");
    let token = text.split("--confirm ").nth(1).unwrap().trim().to_owned();
    held.commit().await.unwrap();
    drain(&mut worker).await;
    let (code, text) = confirm(url, &replay, &token).await;
    assert!(code == 0 && text.contains("replay 8 messages") && text.contains("3 rows came since"), "{text}");
    let kept = "SELECT count(*) FROM oncebox.parked WHERE key IN ('held', 'behind-0', 'behind-1')";
    assert_eq!(client.query_one(kept, &[]).await.unwrap().get::<_, i64>(0), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lane_that_has_lost_more_since_a_dry_run_is_left_alone() {
    let env = TestEnv::new().await;
    let (client, url) = (env.pg().await, env.database_url());
    let config = stream_config(env.name(), &env.subject(">"));
    fresh_stream(env.nats_url(), config.clone()).await;
    let relay = connect(&values_of(&env)).await;
    let mut worker = relay.worker();
    enqueue(&client, &env.subject("a"), "m-", 0..5, 1).await;
    drain(&mut worker).await;
    assert_eq!(relay.recovery().run_once().await.unwrap(), 0, "nothing is lost yet");
    fresh_stream(env.nats_url(), config).await;
    assert!(relay.recovery().run_once().await.unwrap() > 0);

    let resend = ["outbox", "resend", "--stream", env.name()];
    let (token, messages) = dry(url, &resend, "messages").await;
    assert_eq!(messages, 5);
    let other = confirm(url, &[&resend[..], &["--since", "1h"]].concat(), &token).await;
    assert!(other.0 == 1 && other.1.contains("has changed since it was shown"), "{other:?}");
    let more = "INSERT INTO oncebox.loss (lane, stream, number, kind, sequence, lost_sequence, floor, high, snap)
                SELECT lane, stream, number + 1, kind, sequence, lost_sequence, floor, high, snap FROM oncebox.loss";
    client.batch_execute(more).await.unwrap();
    let (code, text) = confirm(url, &resend, &token).await;
    assert!(code == 1 && text.contains("1 then, 2 of them now"), "{text}");
    assert_eq!(drain(&mut worker).await, 0, "nothing was done");
    let of_relays = "DELETE FROM oncebox.loss WHERE number > (SELECT min(number) FROM oncebox.loss)";
    client.batch_execute(of_relays).await.unwrap();

    let since = [&resend[..], &["--since", "1h"]].concat();
    let (token, _) = dry(url, &since, "messages").await;
    let (code, text) = confirm(url, &since, &token).await;
    assert!(code == 0 && text.contains("asked the relays to send again 5 messages"), "{text}");
    let sent = "SELECT count(*) FROM oncebox.loss WHERE resending_at IS NOT NULL";
    assert_eq!(client.query_one(sent, &[]).await.unwrap().get::<_, i64>(0), 1);
    assert_eq!(drain(&mut worker).await, 5, "the worker sends them");
    let (code, text) = confirm(url, &since, &token).await;
    assert!(code == 1 && text.contains("has changed since it was shown"), "once for each token: {text}");
}

/// As an operator does it: relays run, and the stream was deleted and made anew.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_stream_lost_lately_is_sent_again_though_no_milestone_is_as_old_as_that() {
    let env = TestEnv::new().await;
    let (client, url) = (env.pg().await, env.database_url());
    let (config, values) = (stream_config(env.name(), &env.subject(">")), values_of(&env));
    let stream = fresh_stream(env.nats_url(), config.clone()).await;
    let relay = Running::start(&values);
    let mut expected = enqueue(&client, &env.subject("a"), "m-", 0..5, 1).await;
    await_messages(&stream, 5).await;
    relay.stop().await;
    let stream = fresh_stream(env.nats_url(), config).await;
    let relay = Running::start(&values);
    let loss = "SELECT FROM oncebox.loss WHERE kind = 'recreated' HAVING count(*) > 0";
    eventually("the loss is noted", LIMIT, async || client.query_opt(loss, &[]).await.unwrap()).await;
    expected.extend(enqueue(&client, &env.subject("a"), "n-", 0..1, 1).await);
    await_messages(&stream, 1).await;

    let resend = ["outbox", "resend", "--stream", env.name(), "--since", "1h"];
    let (token, messages) = dry(url, &resend, "messages").await;
    assert!(messages >= 5, "{messages}");
    let (code, text) = confirm(url, &resend, &token).await;
    assert!(code == 0 && text.contains("asked the relays to send again"), "{text}");
    await_messages(&stream, 6).await;
    assert_delivered(&stored(&stream).await, &expected);
    relay.stop().await;
    let verify = ["outbox", "verify", "--stream", env.name(), "--nats-url", env.nats_url()];
    let (code, text, log) = run(url, &verify).await;
    assert!(code == 0 && (text + &log).contains("0 missing"), "nothing is missing now");
}
