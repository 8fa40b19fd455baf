//! Edits of dead letters, large ones too, while two inboxes are cut off and begin again: each
//! handles the old message or its edit, once.

use std::time::Duration;

use oncebox_inbox::{Consumer, Inbox, Outcome};
use oncebox_tests::{TestEnv, eventually};

use super::edit::{file, text};
use crate::{
    inbox::{
        consumer::{Running, publish},
        support::{Does, Job, LIMIT, builder, count, insert, stream_environment},
    },
    relay::{
        large::{drained, enqueue_bytes},
        process::run_ok,
    },
};

const SMALL: i64 = 24;
const LARGE: [&str; 2] = ["large-1", "large-2"];

/// Whether a message can be handled: its number is even, or an operator has put a header.
fn is_right(cx: &oncebox_inbox::Context<'_>, job: &Job) -> bool {
    job.n % 2 == 0 || cx.message().header_value("fixed").is_some()
}

/// Gives wrong messages up.
fn gives_wrong_up() -> Does {
    Does::new(|cx, job| {
        Box::pin(async move {
            if !is_right(cx, &job) {
                return Ok(Outcome::dead("wrong"));
            }
            Ok(Outcome::done(insert(cx, &job).await?))
        })
    })
}

/// Tries wrong messages for a while.
fn tries_wrong_again() -> Does {
    Does::new(|cx, job| {
        Box::pin(async move {
            insert(cx, &job).await?;
            if is_right(cx, &job) { Ok(Outcome::done(String::new())) } else { Err("wrong".into()) }
        })
    })
}

/// Consumes as this durable consumer, until it is dropped in the middle of its work.
async fn consuming(env: &TestEnv, durable: &str, is_mended: bool) -> Running {
    let jetstream = env.jetstream().await;
    let consumer = Consumer::new(jetstream, env.name(), durable).ack_wait(Duration::from_secs(1));
    let inbox = |scope: &str| -> Inbox { builder(env).scope(scope).attempts_max(4).build().unwrap() };
    match durable {
        "d" => Running::start(consumer, inbox("tests:gives-up"), gives_wrong_up()),
        _ if is_mended => Running::start(consumer, inbox("tests:tries"), Does::effect()),
        _ => Running::start(consumer, inbox("tests:tries"), tries_wrong_again()),
    }
}

#[tokio::test]
async fn each_inbox_handles_a_message_or_its_edit_whatever_is_cut_off() {
    let env = stream_environment().await;
    let (client, url) = (env.pg().await, env.database_url());
    for key in LARGE {
        enqueue_bytes(&env, &client, key, 2 << 20).await;
        drained(&env).await;
    }
    for n in 0..SMALL {
        let line = format!("line-{}", n % 3);
        publish(&env.jetstream().await, env.subject("a"), &format!("k{n}"), n, Some(&line)).await;
    }
    let (_kept, payload) = file(br#"{"n":2}"#);
    let mut edited = 0;
    let begun = tokio::time::Instant::now();
    let all = (usize::try_from(SMALL).unwrap() + LARGE.len()) * 2;
    loop {
        let both = [consuming(&env, "d", false).await, consuming(&env, "e", false).await];
        tokio::time::sleep(Duration::from_millis(400)).await;
        // One that was cut off too often is dead, too, and right as it is.
        let sql = "SELECT id::text, key, reason <> 'wrong' FROM oncebox.dead_letter
                   WHERE scope = 'tests:gives-up' OR reason NOT LIKE '%wrong%' ORDER BY id LIMIT 3";
        for row in client.query(sql, &[]).await.unwrap() {
            let (id, key, is_right): (String, String, bool) = (row.get(0), row.get(1), row.get(2));
            let act: &[&str] = match is_right {
                true => &["retry", "--id", &id],
                false if key.starts_with('k') => &["edit", &id, "--note", "INC-7", "--payload", &payload],
                false => &["edit", &id, "--note", "INC-7", "--header", "fixed=yes"],
            };
            run_ok(url, &[&["inbox", "dead"], act, &["--nats-url", env.nats_url()]].concat()).await;
            edited += i64::from(!is_right);
        }
        // Cut off, not stopped: handlers, claims and acknowledgements in flight are lost.
        drop(both);
        let handled = "SELECT count(*) FROM oncebox.inbox WHERE status = 'completed'";
        let handled: i64 = client.query_one(handled, &[]).await.unwrap().get(0);
        if usize::try_from(handled).unwrap() >= all {
            break;
        }
        assert!(begun.elapsed() < LIMIT * 4, "{edited} edited, {handled} of {all} handled");
    }
    assert_eq!(edited, SMALL / 2 + LARGE.len() as i64);
    // An operator who retries a message that the other inbox gave up before the edit came changes
    // nothing, even where that inbox could handle it by now.
    let left = count(&env, "oncebox.dead_letter").await;
    if left > 0 {
        let retry = ["inbox", "dead", "retry", "--all", "--nats-url", env.nats_url()];
        run_ok(url, &retry).await;
    }
    let both = [consuming(&env, "d", false).await, consuming(&env, "e", true).await];
    eventually("all is acknowledged", LIMIT, async || {
        let mut open = 0;
        for durable in ["d", "e"] {
            let mut consumer: async_nats::jetstream::consumer::PullConsumer =
                env.stream().await.get_consumer(durable).await.unwrap();
            let info = consumer.info().await.unwrap();
            open += info.num_pending + info.num_ack_pending as u64;
        }
        (open == 0).then_some(())
    })
    .await;
    drop(both);
    let twice = "SELECT string_agg(concat_ws(' ', e.key, e.n), ', ') FROM (
                   SELECT oncebox.edit_root(key) AS key, count(*) AS n FROM effect GROUP BY 1 HAVING count(*) <> 2
                 ) AS e";
    assert_eq!(
        text(&client, twice).await,
        "",
        "each message has one effect in each inbox; {left} letters retried"
    );
    let roots = "SELECT count(DISTINCT oncebox.edit_root(key))::text FROM effect";
    assert_eq!(text(&client, roots).await, (SMALL + 2).to_string());
}
