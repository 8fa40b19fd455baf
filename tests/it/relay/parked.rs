//! Messages that cannot be published are set aside with a reason; the others flow, and nothing is
//! lost.

use async_nats::jetstream::{self, stream::DiscardPolicy};
use oncebox_relay::parts::Worker;
use oncebox_tests::{Nats, TestEnv, eventually};
use tokio_postgres::Client;

use crate::relay::{
    process::{Process, run},
    support::{
        LIMIT, assert_delivered, connect, drain, enqueue, fresh_stream, stored, stream_config, values,
        values_of, with,
    },
};

/// The keys of parked messages with state and reason, in the order of their ids.
async fn parked(client: &Client, prefix: &str) -> Vec<(String, &'static str, i32, String)> {
    let sql = "SELECT m.key, p.dead_at IS NOT NULL, p.next_attempt_at IS NOT NULL, p.attempts, p.error
               FROM oncebox.parked AS p JOIN oncebox.message AS m USING (lane, id)
               WHERE starts_with(m.key, $1) ORDER BY m.id";
    let rows = client.query(sql, &[&prefix]).await.unwrap();
    rows.iter()
        .map(|row| {
            let state = match (row.get(1), row.get(2)) {
                (true, _) => "dead",
                (false, true) => "due",
                (false, false) => "behind",
            };
            (row.get(0), state, row.get(3), row.get(4))
        })
        .collect()
}

async fn drain_until_stored(worker: &mut Worker, stream: &jetstream::stream::Stream, count: u64) {
    eventually("set-aside messages are sent", LIMIT, async || {
        drain(worker).await;
        (stream.get_info().await.unwrap().state.messages >= count).then_some(())
    })
    .await;
}

#[tokio::test]
async fn impossible_messages_are_dead_and_block_or_skip_their_ordering_key_only() {
    let env = TestEnv::new().await;
    let nats = Nats::start_with("max_payload: 65536").await.unwrap();
    let mut config = stream_config("SMALL", &env.subject(">"));
    config.max_message_size = 2_000;
    let stream = fresh_stream(&nats.url(), config).await;
    let client = env.pg().await;
    let subject = env.subject("a");
    let mut expected = enqueue(&client, &subject, "fine-", 0..50, 0).await;
    let sql = "SELECT oncebox.enqueue($1, $2, convert_to(repeat('x', $3), 'UTF8'), '{}', $4)";
    for (key, bytes) in [("server-0", 70_000), ("stream-0", 3_000)] {
        let ordering_key = format!("{}-key0", &key[..6]);
        client.execute(sql, &[&key, &subject, &bytes, &ordering_key]).await.unwrap();
    }
    enqueue(&client, &subject, "server-", 1..6, 1).await;
    enqueue(&client, &subject, "stream-", 1..6, 1).await;
    expected.extend(enqueue(&client, &subject, "fine-", 50..100, 3).await);

    let values = values(env.database_url(), &nats.url());
    drain(&mut connect(&values).await.worker()).await;
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0, "the others flow");
    for (prefix, reason) in [
        ("server-", "where 65536 can be sent: name a bucket by the option object-store"),
        ("stream-", "(10054)"),
    ] {
        let parked = parked(&client, prefix).await;
        let states: Vec<_> = parked.iter().map(|(_, state, _, _)| *state).collect();
        assert_eq!(states, ["dead", "behind", "behind", "behind", "behind", "behind"], "{parked:?}");
        assert!(parked[0].3.contains(reason), "{parked:?}");
    }
    // A relay that lets them go on: the next message of the key brings those that wait, in order.
    enqueue(&client, &subject, "server-", 6..7, 1).await;
    enqueue(&client, &subject, "stream-", 6..7, 1).await;
    let mut skipping = connect(&with(&values, [("on-dead", "skip")])).await.worker();
    drain_until_stored(&mut skipping, &stream, 112).await;
    for prefix in ["server-", "stream-"] {
        expected.extend((1..7).map(|n| format!("{prefix}{n}")));
        assert_eq!(parked(&client, prefix).await.len(), 1, "only the dead one is left");
    }
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0);
    // Within one batch, too.
    client.execute(sql, &[&"again-0", &subject, &70_000, &"again-key0"]).await.unwrap();
    expected.extend(enqueue(&client, &subject, "again-", 1..6, 1).await);
    drain(&mut skipping).await;
    drain_until_stored(&mut skipping, &stream, 117).await;
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0);
}

#[tokio::test]
async fn a_thousand_messages_behind_one_without_a_stream_arrive_in_order_when_it_has_one() {
    let env = TestEnv::new().await;
    let stream = fresh_stream(env.nats_url(), stream_config(env.name(), &env.subject("taken"))).await;
    let client = env.pg().await;
    let mut expected = enqueue(&client, &env.subject("nobody"), "first-", 0..1, 0).await;
    let sql =
        "UPDATE oncebox.message_0 SET ordering_key = 'waiting-key0', lane = oncebox.lane_of('waiting-key0')";
    client.execute(sql, &[]).await.unwrap();
    // The stream takes these, but not before the first of their ordering key.
    expected.extend(enqueue(&client, &env.subject("taken"), "waiting-", 0..1_000, 1).await);
    let others = enqueue(&client, &env.subject("taken"), "other-", 0..100, 4).await;
    let values = with(&values_of(&env), [("batch-messages", "100")]);
    drain(&mut connect(&values).await.worker()).await;
    assert_eq!(assert_delivered(&stored(&stream).await, &others), 0, "other ordering keys flow");
    let first = parked(&client, "first-").await;
    assert_eq!((first[0].1, first[0].2 > 0), ("due", true), "{first:?}");
    assert!(first[0].3.contains("no stream takes the subject"), "{first:?}");
    assert!(parked(&client, "waiting-").await.iter().all(|(_, state, _, _)| *state == "behind"));

    let mut config = stream_config(env.name(), &env.subject(">"));
    config.max_messages = -1;
    env.jetstream().await.update_stream(config).await.unwrap();
    let mut worker = connect(&values).await.worker();
    eventually("the first one arrives", LIMIT, async || {
        drain(&mut worker).await;
        parked(&client, "first-").await.is_empty().then_some(())
    })
    .await;
    // Later ones of the key, enqueued while it is released, stay after it.
    expected.extend(enqueue(&client, &env.subject("taken"), "waiting-", 1_000..1_050, 1).await);
    expected.extend(others);
    drain_until_stored(&mut worker, &stream, 1_151).await;
    assert_eq!(parked(&client, "").await, []);
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0);
}

#[tokio::test]
async fn a_full_stream_costs_no_attempt_and_gets_the_rest_in_order_when_it_has_room() {
    let env = TestEnv::new().await;
    let mut config = stream_config(env.name(), &env.subject(">"));
    config.discard = DiscardPolicy::New;
    config.max_messages = 10;
    let stream = fresh_stream(env.nats_url(), config.clone()).await;
    let client = env.pg().await;
    let mut expected = enqueue(&client, &env.subject("a"), "m-", 0..60, 3).await;
    // One attempt would be one too many.
    let values = with(&values_of(&env), [("attempts-max", "1")]);
    let mut worker = connect(&values).await.worker();
    drain(&mut worker).await;
    assert_eq!(stored(&stream).await.len(), 10);
    expected.extend(enqueue(&client, &env.subject("a"), "m-", 60..90, 3).await);
    eventually("tried again without success", LIMIT, async || {
        drain(&mut worker).await;
        let sql =
            "SELECT count(*) > 0 FROM oncebox.parked WHERE next_attempt_at > parked_at + interval '1 s'";
        client.query_one(sql, &[]).await.unwrap().get::<_, bool>(0).then_some(())
    })
    .await;
    let waiting = parked(&client, "m-").await;
    assert!(waiting.len() <= 80, "{waiting:?}");
    assert!(waiting.iter().all(|(_, state, attempts, _)| *state != "dead" && *attempts == 0), "{waiting:?}");
    assert!(waiting.iter().any(|(_, _, _, error)| error.contains("10077")), "{waiting:?}");
    config.max_messages = -1;
    env.jetstream().await.update_stream(config).await.unwrap();
    drain_until_stored(&mut worker, &stream, 90).await;
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0);
}

#[tokio::test]
async fn a_message_that_another_stream_would_take_waits_for_the_expected_one() {
    let env = TestEnv::new().await;
    let wanted = fresh_stream(env.nats_url(), stream_config(env.name(), &env.subject("wanted.>"))).await;
    let other_name = format!("{}_other", env.name());
    let other = fresh_stream(env.nats_url(), stream_config(&other_name, &env.subject("other.>"))).await;
    let client = env.pg().await;
    let astray = enqueue(&client, &env.subject("other.a"), "astray-", 0..20, 2).await;
    let mut expected = enqueue(&client, &env.subject("wanted.a"), "m-", 0..20, 2).await;
    let values = with(&values_of(&env), [("expected-stream", env.name())]);
    let mut worker = connect(&values).await.worker();
    drain(&mut worker).await;
    assert_eq!(assert_delivered(&stored(&wanted).await, &expected), 0);
    assert_eq!(stored(&other).await, []);
    let waiting = parked(&client, "astray-").await;
    assert_eq!(waiting.len(), 20);
    assert!(waiting[0].3.contains("10060"), "{waiting:?}");
    // The operator mends the subjects.
    let context = env.jetstream().await;
    context.delete_stream(&other_name).await.unwrap();
    context.update_stream(stream_config(env.name(), &env.subject(">"))).await.unwrap();
    expected.extend(astray);
    drain_until_stored(&mut worker, &wanted, 40).await;
    assert_eq!(assert_delivered(&stored(&wanted).await, &expected), 0);
}

/// Some of each pass, or of a pass now and then, is theirs: a log that never runs dry does not
/// starve them.
#[tokio::test]
async fn parked_messages_are_sent_while_the_log_fills_every_pass() {
    let env = TestEnv::new().await;
    let stream = fresh_stream(env.nats_url(), stream_config(env.name(), &env.subject("log"))).await;
    let client = env.pg().await;
    let values = with(&values_of(&env), [("batch-messages", "20"), ("workers", "1")]);
    let mut worker = connect(&values).await.worker();
    for wave in ["first-", "second-"] {
        let subject = env.subject(wave.trim_end_matches('-'));
        enqueue(&client, &subject, wave, 0..3, 0).await;
        drain(&mut worker).await;
        assert_eq!(parked(&client, wave).await.len(), 3);
        let mut config = stream.get_info().await.unwrap().config;
        config.subjects.push(subject);
        env.jetstream().await.update_stream(config).await.unwrap();
        client.batch_execute("UPDATE oncebox.parked SET next_attempt_at = now()").await.unwrap();
        let mut passes = 0;
        eventually("parked messages are sent beside a full log", LIMIT, async || {
            enqueue(&client, &env.subject("log"), &format!("{wave}{passes}-"), 0..60, 0).await;
            worker.run_once().await.unwrap();
            passes += 1;
            parked(&client, wave).await.is_empty().then_some(())
        })
        .await;
    }
}

/// A reload of nats-server does not report that it takes more: a message that is retried must not
/// die of a limit from an old connection.
#[tokio::test]
async fn a_limit_that_was_raised_by_a_reload_is_known_before_a_message_dies_of_it() {
    let env = TestEnv::new().await;
    let mut nats = Nats::start_with("max_payload: 65536").await.unwrap();
    let stream = fresh_stream(&nats.url(), stream_config("LARGE", &env.subject(">"))).await;
    let client = env.pg().await;
    let relay = Process::relay(&values(env.database_url(), &nats.url()));
    let sql = "SELECT oncebox.enqueue('large', $1, convert_to(repeat('x', 70000), 'UTF8'))";
    client.execute(sql, &[&env.subject("a")]).await.unwrap();
    eventually("it is dead", LIMIT, async || {
        let parked = parked(&client, "large").await;
        parked.iter().any(|(_, state, ..)| *state == "dead").then_some(())
    })
    .await;
    nats.reconfigure("max_payload: 1048576").unwrap();
    let reloading = tokio::process::Command::new("kill").args(["-HUP", &nats.pid().to_string()]).status();
    assert!(reloading.await.unwrap().success());
    eventually("the server has read it", LIMIT, async || {
        let fresh = async_nats::connect(nats.url()).await.ok()?;
        (fresh.server_info().max_payload > 65_536).then_some(())
    })
    .await;
    // The limit of a fresh connection holds for some seconds.
    eventually("it is sent", LIMIT, async || {
        run(env.database_url(), &["outbox", "dead", "retry", "--all"]).await;
        (stream.get_info().await.ok()?.state.messages == 1).then_some(())
    })
    .await;
    relay.signal("TERM").await;
    assert_eq!(relay.ended().await.0.code(), Some(0));
}

/// A message to the subject of acknowledgements could pass for one.
#[tokio::test]
async fn a_subject_below_the_inbox_of_the_relay_is_refused() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    enqueue(&client, "replies.a", "forged-", 0..1, 0).await;
    let relay = connect(&with(&values_of(&env), [("nats-inbox-prefix", "replies")])).await;
    drain(&mut relay.worker()).await;
    let parked = parked(&client, "forged-").await;
    assert!(parked[0].1 == "dead" && parked[0].3.contains("below the relay's inbox"), "{parked:?}");
}

/// The clock was an hour ahead when they were set aside, and has gone back.
#[tokio::test]
async fn a_pause_that_is_longer_than_any_ends_at_once() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let keys = enqueue(&client, &env.subject("a"), "m-", 0..20, 4).await;
    let relay = connect(&values_of(&env)).await;
    drain(&mut relay.worker()).await;
    let ahead =
        "UPDATE oncebox.parked SET next_attempt_at = next_attempt_at + interval '1 hour', waits_for = NULL
                 WHERE next_attempt_at IS NOT NULL";
    assert!(client.execute(ahead, &[]).await.unwrap() > 0);
    // One that waits for others is released by them alone.
    enqueue(&client, &format!("nowhere.{}", env.name()), "waits-", 0..1, 0).await;
    drain(&mut relay.worker()).await;
    let waits =
        "UPDATE oncebox.parked SET next_attempt_at = now() + interval '6 hours' WHERE waits_for IS NOT NULL";
    assert_eq!(client.execute(waits, &[]).await.unwrap(), 1);
    let stream = env.stream().await;
    relay.maintainer().run_once().await.unwrap();
    drain_until_stored(&mut relay.worker(), &stream, keys.len() as u64).await;
    assert_eq!(assert_delivered(&stored(&stream).await, &keys), 0);
    assert_eq!(parked(&client, "").await.len(), 1);
}
