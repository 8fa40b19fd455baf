//! An inbox acts once on a key and all its edits, in any order of arrival: in each mode, through
//! the functions that clients call and through the crates.

use std::{sync::Arc, time::Duration};

use oncebox_inbox::{Outcome, Verdict};
use oncebox_tests::TestEnv;
use tokio::task::JoinSet;
use tokio_postgres::Client;

use super::edit::text;
use crate::{
    inbox::{
        batch::batch,
        support::{Does, SCOPE, count, effects, environment, inbox, insert, message, tried},
    },
    leased::support::{LEASE, Mood, Pays, builder as leased_builder, setup},
    relay::process::{run, run_ok},
};

const ROOT_AND_EDIT: [&str; 2] = ["k", "k:oncebox-edit-1"];

/// Clients in any language claim by these functions, or by the INSERT that the crates use.
#[tokio::test]
async fn an_inbox_acts_once_on_a_key_and_all_its_edits() {
    let env = environment().await;
    let client = env.pg().await;
    let claim = async |key: &str, payload: &str| {
        let sql = format!("SELECT answer FROM oncebox.claim('s', '{key}', '{payload}')");
        client.batch_execute("BEGIN DEFERRABLE").await.unwrap();
        let answer = text(&client, &sql).await;
        client.batch_execute("COMMIT").await.unwrap();
        answer
    };
    let lease = async |key: &str| {
        let sql = format!(
            "SELECT answer FROM oncebox.claim_leased('l', '{key}', 'p', '00000000-0000-0000-0000-000000000001', '1 min')"
        );
        text(&client, &sql).await
    };
    // A step of a user is no edit, however it is named.
    assert_eq!(claim("k:edit-1", "q").await, "new");
    assert_eq!(claim("k:oncebox-edit-1", "p").await, "new");
    for (key, answer) in [
        ("k:oncebox-edit-2", "replayed"),
        ("k:oncebox-edit-1", "replayed"),
        ("k:oncebox-edit-1:ship", "new"),
        ("k2:oncebox-edit-1", "new"),
    ] {
        assert_eq!(claim(key, if key == "k:oncebox-edit-1" { "p" } else { "q" }).await, answer, "{key}");
    }
    assert_eq!(lease("k:oncebox-edit-1").await, "new");
    assert_eq!(lease("k:oncebox-edit-2").await, "in_flight", "another edit is at work");
    client.batch_execute("SELECT oncebox.end_leased('l', '', 'k:oncebox-edit-1', '00000000-0000-0000-0000-000000000001', 1, 'completed', NULL)").await.unwrap();
    assert_eq!(lease("k:oncebox-edit-2").await, "replayed");
    // While a transaction works on the key, its edit waits.
    let holder = env.pg().await;
    holder.batch_execute("BEGIN DEFERRABLE; SELECT oncebox.claim('s', 'busy', 'p')").await.unwrap();
    assert_eq!(claim("busy:oncebox-edit-1", "q").await, "in_flight");
    holder.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(claim("busy:oncebox-edit-1", "q").await, "new");
}

/// Claims a key in a transaction of its own.
async fn claim(client: &Client, scope: &str, key: &str) -> String {
    client.batch_execute("BEGIN DEFERRABLE").await.unwrap();
    let answer =
        text(client, &format!("SELECT answer FROM oncebox.claim('{scope}', '{key}', '{key}')")).await;
    client.batch_execute("COMMIT").await.unwrap();
    answer
}

/// Keys with their statuses, in order.
async fn keys(client: &Client) -> String {
    let sql = "SELECT string_agg(concat_ws(' ', key, status), ', ' ORDER BY key) FROM oncebox.inbox";
    text(client, sql).await
}

/// An operator who retries the old letter, in an inbox that has handled the edit, frees nothing.
#[tokio::test]
async fn a_key_is_dead_where_its_edit_came_first() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    assert_eq!(claim(&client, "s", "k:oncebox-edit-2").await, "new");
    assert_eq!(keys(&client).await, "k dead, k:oncebox-edit-1 dead, k:oncebox-edit-2 completed");
    for (key, answer) in [("k", "dead"), ("k:oncebox-edit-1", "replayed"), ("k:oncebox-edit-3", "replayed")] {
        assert_eq!(claim(&client, "s", key).await, answer, "{key}");
    }
    let reason = "SELECT convert_from(outcome, 'UTF8') FROM oncebox.inbox WHERE key = 'k'";
    assert_eq!(text(&client, reason).await, "k:oncebox-edit-2 came in its place");
    assert_eq!(count(&env, "oncebox.dead_letter").await, 0, "the payload is another's, and no fault of it");

    // No command tells an operator to send the old message again.
    let why = run_ok(env.database_url(), &["why", "k"]).await;
    assert!(why.contains("an edit came in its place in s") && !why.contains("enqueue it again"), "{why}");
    let trace = run_ok(env.database_url(), &["trace", "k"]).await;
    assert!(trace.contains("edited in s"), "{trace}");

    let bury = "SELECT oncebox.bury('s', 'died', 'died', 'no', 'a.b')";
    assert_eq!(text(&client, bury).await, "dead");
    assert_eq!(claim(&client, "s", "died:oncebox-edit-1").await, "new");
    client
        .batch_execute("SELECT oncebox.retry_letter(id, 'mina', 'n') FROM oncebox.dead_letter")
        .await
        .unwrap();
    assert_eq!(claim(&client, "s", "died").await, "dead");

    // Nor while the edit is on its way.
    let bury = r#"SELECT oncebox.bury('s', 'sent', 'sent', 'no', 'a.b', '{"Idempotency-Key": "sent"}')"#;
    assert_eq!(text(&client, bury).await, "dead");
    let edit = "SELECT e.key FROM oncebox.dead_letter AS d,
                  oncebox.edit_letter(d.id, d.headers, 'p', oncebox.content_digest(d.headers, d.payload), 'mina', 'n') AS e
                WHERE d.key = 'sent'";
    assert_eq!(text(&client, edit).await, "sent:oncebox-edit-1");
    let (_, why, _) = run(env.database_url(), &["why", "sent"]).await;
    assert!(why.contains("an edit came in its place in s") && !why.contains("enqueue it again"), "{why}");
    let (_, why, _) = run(env.database_url(), &["why", "sent:oncebox-edit-1"]).await;
    assert!(why.contains("sent at once") && !why.contains("never enqueued"), "{why}");

    // A client of an HTTP API names its requests as it likes.
    client.batch_execute("SELECT oncebox.register_scope('h', kind => 'http')").await.unwrap();
    for key in ["k:oncebox-edit-1", "k", "k:oncebox-edit-2"] {
        assert_eq!(claim(&client, "h", key).await, "new", "{key}");
    }
}

/// Neither is answered from a claim that may still be given back.
#[tokio::test]
async fn a_key_and_its_edit_in_one_batch_are_handled_one_after_the_other() {
    let fails_once = || {
        Does::new(|cx, job| {
            Box::pin(async move {
                insert(cx, &job).await?;
                if job.n == 7 { Err("not yet".into()) } else { Ok(Outcome::done(String::new())) }
            })
        })
    };
    let env = environment().await;
    let (inbox, handler) = (inbox(&env), fails_once());
    // The key fails, and is given back: its edit must be handled, by this batch or later.
    let both = [message("k", 7), message("k:oncebox-edit-1", 2), message("other", 4)];
    let first = batch(&inbox, &handler, &both).await;
    assert!(
        first[0] == "k retry" && first[2] == "other handled" && !first[1].contains("replayed"),
        "{first:?}"
    );
    let second = batch(&inbox, &handler, &both[1..]).await;
    assert!(["k:oncebox-edit-1 handled", "k:oncebox-edit-1 replayed"].contains(&&*second[0]), "{second:?}");
    assert_eq!(batch(&inbox, &handler, &both[..1]).await, ["k dead"]);
    let client = env.pg().await;
    assert_eq!(keys(&client).await, "k dead, k:oncebox-edit-1 completed, other completed");
    assert_eq!((effects(&env).await, count(&env, "oncebox.inbox_attempt").await), (2, 0));

    // By the functions that clients call.
    client.batch_execute("BEGIN DEFERRABLE").await.unwrap();
    let claims = format!(
        "SELECT string_agg(c.answer, ' ' ORDER BY c.place)
         FROM oncebox.claim_batch('s', '{{\"\",\"\"}}', '{{{}}}', '{{\"a\",\"b\"}}') AS c",
        ROOT_AND_EDIT.join(",")
    );
    client.batch_execute("SELECT oncebox.register_scope('s')").await.unwrap();
    assert_eq!(text(&client, &claims).await, "new alone");
    let release = "SELECT oncebox.settle_batch('s', released_tenants => '{\"\"}', released_keys => '{k}')";
    client.batch_execute(release).await.unwrap();
    client.batch_execute("COMMIT").await.unwrap();
    assert_eq!(claim(&client, "s", "k:oncebox-edit-1").await, "new");
}

/// The other inbox was still trying the old message when the edit came.
#[tokio::test]
async fn a_message_that_fails_is_not_tried_again_after_its_edit() {
    let env = environment().await;
    let (inbox, handler) = (inbox(&env), Does::effect());
    tried(&env, "k", 3).await;
    assert!(matches!(
        inbox.run(&handler, &message("k:oncebox-edit-1", 2)).await.unwrap(),
        Verdict::Handled(_)
    ));
    assert_eq!(count(&env, "oncebox.inbox_attempt").await, 0, "it fails no more");
    let old = inbox.run(&handler, &message("k", 1)).await.unwrap();
    assert!(matches!(&old, Verdict::Dead { reason } if reason.ends_with("came in its place")), "{old:?}");
    assert_eq!((handler.runs(), count(&env, "oncebox.dead_letter").await), (1, 0));
}

/// Under a lease: while an owner works on the key, its edit waits; one that hangs for longer than
/// its lease has lost the key to the edit.
#[tokio::test]
async fn an_owner_that_has_lost_its_lease_to_an_edit_ends_nothing() {
    let (env, leased, provider) = setup().await;
    let handler = Pays::charge(&provider);
    provider.mood(Mood::HoldsAnswers);
    // Its lease is not renewed, as in a process that is suspended.
    let hung = leased_builder(&env, LEASE * 1000).build().unwrap();
    let mut hanging = JoinSet::new();
    hanging.spawn({
        let handler = handler.clone();
        async move { hung.run(&handler, &message("k", 1)).await }
    });
    provider.holding.notified().await;
    provider.mood(Mood::Works);
    let edit = message("k:oncebox-edit-1", 2);
    assert!(matches!(leased.run(&handler, &edit).await.unwrap(), Verdict::InFlight));
    let client = env.pg().await;
    client.batch_execute("UPDATE oncebox.inbox_claim SET lease_until = clock_timestamp()").await.unwrap();
    assert!(matches!(leased.run(&handler, &edit).await.unwrap(), Verdict::Handled(_)));
    provider.answer.notify_one();
    let late = hanging.join_next().await.unwrap().unwrap();
    assert!(!matches!(late, Ok(Verdict::Handled(_))), "{late:?}");
    assert_eq!(keys(&client).await, "k dead, k:oncebox-edit-1 completed");
    assert!(matches!(leased.run(&handler, &message("k", 1)).await.unwrap(), Verdict::Dead { .. }));
    assert_eq!(effects(&env).await, 1, "what the transaction of its end writes is written once");
    assert_eq!(count(&env, "oncebox.inbox_claim").await, 0);
    let left = format!(
        "SELECT string_agg(key || ' ' || epoch, '') FROM oncebox.inbox_effect WHERE scope = '{SCOPE}'"
    );
    assert_eq!(text(&client, &left).await, "k 0", "an operator sees what the old message has done");
}

/// The claim of the key is not committed yet when its edit is claimed.
#[tokio::test]
async fn an_edit_waits_for_a_claim_under_a_lease_that_is_being_made() {
    let env = TestEnv::new().await;
    let (owner, other) = (env.pg().await, env.pg().await);
    let lease = |key: &str, owner: u8| {
        format!(
            "SELECT answer FROM oncebox.claim_leased('l', '{key}', 'p', '00000000-0000-0000-0000-00000000000{owner}', '1 min')"
        )
    };
    owner.batch_execute("SELECT oncebox.register_scope('l', mode => 'lease')").await.unwrap();
    owner.batch_execute("BEGIN").await.unwrap();
    assert_eq!(text(&owner, &lease("k", 1)).await, "new");
    let edit = lease("k:oncebox-edit-1", 2);
    let (answer, ()) = tokio::join!(text(&other, &edit), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        owner.batch_execute("COMMIT").await.unwrap();
    });
    assert_eq!(answer, "in_flight");
}

/// Two sessions claim the key and its edit at the same moment: one of them handles it.
#[tokio::test]
async fn a_key_and_its_edit_that_come_together_are_handled_once() {
    let (env, leased, _) = setup().await;
    let (leased, transactional) =
        (Arc::new(leased), crate::inbox::support::builder(&env).scope("t").build().unwrap());
    let booking = || Pays::new(|_, _| Box::pin(async { Ok(Outcome::done(String::new())) }));
    for round in 0..40 {
        let mut runs = JoinSet::new();
        for key in ROOT_AND_EDIT.map(|key| key.replacen('k', &format!("r{round}"), 1)) {
            let (leased, handler) = (Arc::clone(&leased), booking());
            let (inbox, plain) = (transactional.clone(), Does::effect());
            runs.spawn(async move {
                loop {
                    let under_lease = leased.run(&handler, &message(&key, 1)).await.unwrap();
                    let plainly = inbox.run(&plain, &message(&key, 1)).await.unwrap();
                    if !matches!(under_lease, Verdict::InFlight) && !matches!(plainly, Verdict::InFlight) {
                        return;
                    }
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            });
        }
        while let Some(run) = runs.join_next().await {
            run.unwrap();
        }
    }
    assert_eq!(effects(&env).await, 80, "one of each pair, in each inbox");
}
