//! The token of a dry run is good for one act, though the things that it showed are there again.

use oncebox_tests::TestEnv;

use crate::relay::{
    process::{run, run_ok},
    support::{connect, drain, enqueue, fresh_stream, stored, stream_config, values_of},
};

async fn token(url: &str, command: &[&str]) -> String {
    let text = run_ok(url, &[command, &["--dry-run"]].concat()).await;
    text.split_once("--confirm ").unwrap_or_else(|| panic!("no token: {text}")).1.trim().to_owned()
}

async fn refused(url: &str, command: &[&str], part: &str) {
    let (code, text, log) = run(url, command).await;
    assert!(code == 1 && log.contains(part), "{command:?}: {text}{log}");
}

#[tokio::test]
async fn a_replay_is_confirmed_once_under_whatever_name() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let (client, url, subject) = (env.pg().await, env.database_url(), env.subject("a"));
    let mut worker = connect(&values_of(&env)).await.worker();
    enqueue(&client, &subject, "m-", 0..1, 0).await;
    drain(&mut worker).await;
    let replay = ["outbox", "replay", "--subject", &subject];
    let confirm = token(url, &replay).await;
    let named = |name| [&replay[..], &["--confirm", &confirm, "--request", name]].concat();
    run_ok(url, &named("one")).await;
    refused(url, &named("two"), "has changed since it was shown").await;
    drain(&mut worker).await;
    refused(url, &named("two"), "has changed since it was shown").await;
    // Another request in between changes nothing about that.
    run_ok(url, &["outbox", "replay", "--key", "m-0"]).await;
    drain(&mut worker).await;
    refused(url, &[&replay[..], &["--confirm", &confirm]].concat(), "has changed").await;
    assert_eq!(stored(&stream).await.len(), 3);
}

/// One copy would be for both, and who cancels one would end both.
#[tokio::test]
async fn a_message_whose_replay_is_still_to_be_sent_is_not_asked_for_again() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let (client, url, subject) = (env.pg().await, env.database_url(), env.subject("a"));
    let mut worker = connect(&values_of(&env)).await.worker();
    enqueue(&client, &subject, "m-", 0..3, 0).await;
    drain(&mut worker).await;
    run_ok(url, &["outbox", "replay", "--key", "m-0", "--request", "first"]).await;
    refused(url, &["outbox", "replay", "--key", "m-0", "--request", "second"], "its replay 1 is").await;
    let (code, text, log) = run(url, &["outbox", "replay", "--all", "--request", "second"]).await;
    assert!(code == 0 && text.contains("replay 2 messages"), "{text}{log}");
    assert!(log.contains("1 message left out: its last replay is still to be sent"), "{log}");
    assert_eq!(
        run_ok(url, &["outbox", "replay", "cancel", "--request", "second"]).await,
        "cancelled 2 replays\n"
    );
    drain(&mut worker).await;
    let keys: Vec<String> =
        stored(&stream).await.split_off(3).into_iter().map(|message| message.key).collect();
    assert_eq!(keys, ["m-0;r=1"], "the first is sent");
}

#[tokio::test]
async fn parked_messages_are_tried_once_for_a_token() {
    let env = TestEnv::new().await;
    fresh_stream(env.nats_url(), stream_config(env.name(), &env.subject("taken"))).await;
    let (client, url) = (env.pg().await, env.database_url());
    let mut worker = connect(&values_of(&env)).await.worker();
    enqueue(&client, &env.subject("lost"), "m-", 0..2, 0).await;
    drain(&mut worker).await;
    let retry = ["outbox", "parked", "retry", "--all"];
    let confirm = token(url, &retry).await;
    // A try by the relays itself does not matter.
    client.batch_execute("UPDATE oncebox.parked SET next_attempt_at = now()").await.unwrap();
    drain(&mut worker).await;
    let confirmed = [&retry[..], &["--confirm", &confirm]].concat();
    assert_eq!(run_ok(url, &confirmed).await, "asked the relays to try again 2 messages\n");
    refused(url, &confirmed, "2 then, 0 of them now").await;
    drain(&mut worker).await;
    refused(url, &confirmed, "2 then, 0 of them now").await;
    let again = token(url, &retry).await;
    assert_ne!(again, confirm, "another dry run has another token");
    run_ok(url, &[&retry[..], &["--confirm", &again]].concat()).await;
    let asked: i64 = client.query_one("SELECT count(*) FROM oncebox.audit", &[]).await.unwrap().get(0);
    assert_eq!(asked, 4);
}
