//! How long inboxes keep dead letters, abandoned claims, and the records of their effects.

use std::{pin::pin, sync::Arc, time::Duration};

use oncebox_inbox::{Inbox, Leased, Outcome, Verdict};
use oncebox_tests::TestEnv;
use serde_json::{Value, json};

use crate::{
    inbox::support::{Does, SCOPE, builder, count, environment, gives_up, message},
    leased::{
        self,
        crash::{Point, Stops},
        support::{Mood, Pays, Provider, receipt},
    },
    relay::process::{run, run_ok},
};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Time passes, for everything that is stored.
async fn pass(env: &TestEnv, hours: i32) {
    let pg = env.pg().await;
    for (table, column) in [
        ("inbox", "created_at"),
        ("dead_letter", "created_at"),
        ("inbox_claim", "lease_until"),
        ("inbox_effect", "started_at"),
        ("inbox_sweep", "finished_at"),
        ("inbox_sweep_range", "due_at"),
    ] {
        let sql = format!("UPDATE oncebox.{table} SET {column} = {column} - make_interval(hours => $1)");
        pg.execute(&sql, &[&hours]).await.unwrap();
    }
}

/// All steps of a sweep; how many rows it deleted.
async fn sweep(inbox: &Inbox) -> u64 {
    let mut deleted = 0;
    for _ in 0..100 {
        match inbox.sweep_once().await.unwrap() {
            Some(rows) => deleted += rows,
            None => return deleted,
        }
    }
    panic!("a sweep comes to an end")
}

/// Keys, dead letters, claims, effects.
async fn kept(env: &TestEnv) -> [i64; 4] {
    let mut kept = [0; 4];
    for (place, table) in ["inbox", "dead_letter", "inbox_claim", "inbox_effect"].iter().enumerate() {
        kept[place] = count(env, &format!("oncebox.{table}")).await;
    }
    kept
}

async fn die(inbox: &Inbox, key: &str) {
    let verdict = inbox.run(&gives_up(), &message(key, 1)).await.unwrap();
    assert!(matches!(verdict, Verdict::Dead { .. }), "{verdict:?}");
}

/// Longer than keys, so that there is time to mend and retry; for ever only where keys are.
#[tokio::test]
async fn dead_letters_go_after_their_retention_and_not_before() {
    let env = environment().await;
    let keeps = |scope: &str, days: u32| builder(&env).scope(scope).retention(DAY * days);
    for (inbox, days) in [
        (keeps("tests:ninety", 1).build().unwrap(), 90),
        (keeps("tests:three", 1).dead_letter_retention(DAY * 3).build().unwrap(), 3),
        (keeps("tests:long", 200).build().unwrap(), 200),
    ] {
        die(&inbox, "k").await;
        pass(&env, 24 * days - 1).await;
        sweep(&inbox).await;
        assert_eq!(kept(&env).await[1], 1, "{days} days, but for an hour");
        pass(&env, 2).await;
        // An operator has it locked: he retries it, say.
        let mut operator = env.pg().await;
        let retrying = operator.transaction().await.unwrap();
        retrying.execute("SELECT FROM oncebox.dead_letter FOR UPDATE", &[]).await.unwrap();
        sweep(&inbox).await;
        assert_eq!(
            kept(&env).await[1],
            1,
            "{days} days: nobody waits for the operator, or takes it from him"
        );
        retrying.rollback().await.unwrap();
        pass(&env, 24).await;
        assert_eq!(sweep(&inbox).await, 1, "{days} days");
        assert_eq!(kept(&env).await, [0; 4], "{days} days");
    }
    let for_ever = builder(&env).build().unwrap();
    die(&for_ever, "k").await;
    keeps("tests:other", 1).build().unwrap().sweep_once().await.unwrap();
    pass(&env, 24 * 3000).await;
    assert_eq!((sweep(&for_ever).await, kept(&env).await), (0, [1, 1, 0, 0]));
}

#[tokio::test]
async fn a_retention_of_dead_letters_that_cannot_work_is_refused() {
    let env = environment().await;
    let shorter = builder(&env).retention(DAY * 9).dead_letter_retention(DAY * 8).build();
    let never = builder(&env).dead_letter_retention(DAY * 8).build();
    for built in [shorter, never] {
        let problem = built.unwrap_err().to_string();
        assert!(problem.contains("dead_letter_retention is shorter than retention"), "{problem}");
    }
    let problem = builder(&env).dead_letter_retention(Duration::ZERO).build().unwrap_err().to_string();
    assert!(problem.contains("dead_letter_retention is not 1 second to 100 years"), "{problem}");
}

fn leased(env: &TestEnv) -> Leased {
    trying(env, 20)
}

fn trying(env: &TestEnv, attempts_max: u64) -> Leased {
    let short = Duration::from_millis(1);
    let inbox = Inbox::builder(env.pool(4)).scope(SCOPE).single_tenant().backoff(short, short);
    let inbox = inbox.attempts_max(attempts_max);
    inbox.retention(DAY * 2).dead_letter_retention(DAY * 9).leased(Duration::from_secs(8)).build().unwrap()
}

/// A claim whose effect has happened without a record.
async fn unknown(leased: &Leased, provider: &Arc<Provider>, key: &str) -> Verdict<String> {
    provider.mood(Mood::LosesAnswers);
    let received = message(key, 7);
    let verdict = leased.run(&Pays::charge(provider), &received).await.unwrap();
    provider.mood(Mood::Works);
    verdict
}

/// The records of a claim go a whole retention after its last lease or pause, when no copy of its
/// message can come any more, and not a moment before: else the next copy would charge again.
#[tokio::test]
async fn an_abandoned_claim_remembers_its_effects_for_its_retention() {
    let env = environment().await;
    let (leased, provider) = (leased(&env), Arc::new(Provider::default()));
    let verdict = unknown(&leased, &provider, "k").await;
    assert!(matches!(verdict, Verdict::Retry { .. }), "{verdict:?}");
    {
        // Another one, whose process died.
        let (stops, handler) = Stops::handler(Point::Worked, &provider);
        let received = message("died", 7);
        let mut dying = pin!(leased.run(&handler, &received));
        tokio::select! {
            ended = &mut dying => panic!("{ended:?}"),
            () = stops.reached.notified() => {}
        }
    }
    let for_ever = leased::support::builder(&env, Duration::from_secs(8)).build().unwrap();
    let sql = "INSERT INTO oncebox.inbox_claim (scope, tenant, key, fingerprint, owner, lease_until)
               VALUES ('tests:for-ever', '', 'k', '', gen_random_uuid(), clock_timestamp())";
    env.pg().await.execute(sql, &[]).await.unwrap();
    pass(&env, 47).await;
    assert_eq!((sweep(leased.inbox()).await, kept(&env).await), (0, [0, 0, 3, 3]));
    let verdict = leased.run(&Pays::charge(&provider), &message("k", 7)).await.unwrap();
    assert_eq!(verdict, Verdict::Handled(receipt()));
    assert_eq!((provider.calls("k:charge"), provider.lookups()), (1, 1), "asked, not called again");
    // At work: its lease lasts, however old the claim is.
    let (stops, handler) = Stops::handler(Point::Claimed, &provider);
    let received = message("alive", 7);
    let mut alive = pin!(leased.run(&handler, &received));
    tokio::select! {
        ended = &mut alive => panic!("{ended:?}"),
        () = stops.reached.notified() => {}
    }
    let old = "UPDATE oncebox.inbox_claim SET created_at = created_at - interval '1 year'";
    env.pg().await.execute(old, &[]).await.unwrap();
    let sql =
        "UPDATE oncebox.inbox_claim SET lease_until = lease_until - interval '2 hours' WHERE key <> 'alive'";
    env.pg().await.execute(sql, &[]).await.unwrap();
    let sql = "UPDATE oncebox.inbox_sweep SET finished_at = NULL; DELETE FROM oncebox.inbox_sweep_range";
    env.pg().await.batch_execute(sql).await.unwrap();
    assert_eq!((sweep(leased.inbox()).await, kept(&env).await), (1, [1, 0, 2, 0]), "two hours later");
    stops.go_on.notify_one();
    assert!(matches!(alive.await.unwrap(), Verdict::Handled(_)));
    drop(for_ever);
}

/// A key that died remembers its effects while it may be retried, and while a message that was sent
/// back is still on its way; they go with the last of its row and its letter.
#[tokio::test]
async fn the_effects_of_a_dead_key_are_remembered_as_long_as_it_can_be_retried() {
    let env = environment().await;
    let (leased, provider) = (leased(&env), Arc::new(Provider::default()));
    for key in ["retried", "discarded", "forgotten"] {
        let verdict = unknown(&trying(&env, 1), &provider, key).await;
        assert!(matches!(verdict, Verdict::Dead { .. }), "{verdict:?}");
    }
    let discard = ["inbox", "dead", "discard", "--key", "discarded"];
    assert!(run_ok(env.database_url(), &discard).await.starts_with("discarded 1 message\n"));
    pass(&env, 49).await;
    assert_eq!(sweep(leased.inbox()).await, 3, "the keys");
    assert_eq!(kept(&env).await, [0, 2, 0, 2], "the letters, and the effects of those that have one");
    // A retry changes the tables so. Its message takes its time, and dead letters go meanwhile.
    env.pg().await.execute("DELETE FROM oncebox.dead_letter WHERE key = 'retried'", &[]).await.unwrap();
    pass(&env, 24 * 8).await;
    assert_eq!(sweep(leased.inbox()).await, 1, "the letter");
    assert_eq!(kept(&env).await, [0, 0, 0, 1], "what is on its way is remembered");
    let verdict = leased.run(&Pays::charge(&provider), &message("retried", 7)).await.unwrap();
    assert!(matches!(verdict, Verdict::Handled(_)), "{verdict:?}");
    assert_eq!((provider.calls("retried:charge"), kept(&env).await), (1, [1, 0, 0, 0]));
}

/// In leased mode, too: an old row counts for nothing, whether it has been deleted or not.
#[tokio::test]
async fn under_leases_a_key_counts_as_new_after_its_retention() {
    let env = environment().await;
    let (leased, provider) = (leased(&env), Arc::new(Provider::default()));
    let handler = Pays::charge(&provider);
    let run = async |n| leased.run(&handler, &message("k", n)).await.unwrap();
    assert!(matches!(run(1).await, Verdict::Handled(_)));
    pass(&env, 47).await;
    assert!(matches!(run(1).await, Verdict::Replayed(_)));
    assert!(matches!(run(2).await, Verdict::Mismatch));
    pass(&env, 2).await;
    assert!(matches!(run(2).await, Verdict::Handled(_)), "another payload: the old one is forgotten");
    assert!(matches!(run(2).await, Verdict::Replayed(_)));
    pass(&env, 49).await;
    // It fails: the old row is gone with the claim, the key is to be repeated.
    provider.mood(Mood::Fails);
    assert!(matches!(run(3).await, Verdict::Retry { .. }));
    provider.mood(Mood::Works);
    let verdict = leased::support::run_until_ended(&leased, &handler, &message("k", 3)).await;
    assert!(matches!(verdict, Verdict::Handled(_)), "{verdict:?}");
    assert_eq!((provider.calls("k:charge"), kept(&env).await), (4, [1, 1, 0, 0]));
}

/// An operator deletes the same rows by command, after counting them.
#[tokio::test]
async fn an_operator_prunes_what_inboxes_keep_too_long() {
    let env = environment().await;
    let url = env.database_url();
    let (leased, provider) = (leased(&env), Arc::new(Provider::default()));
    unknown(&leased, &provider, "abandoned").await;
    let plain = builder(&env).scope("tests:plain").retention(DAY * 2).dead_letter_retention(DAY * 9);
    let plain = plain.build().unwrap();
    die(&plain, "dead").await;
    let done = Does::new(|_, _| Box::pin(async { Ok(Outcome::done(String::new())) }));
    for n in 0..3 {
        plain.run(&done, &message(&format!("k{n}"), n)).await.unwrap();
    }
    let nothing = "pruned 0 keys, 0 dead letters, 0 abandoned claims\n";
    assert_eq!(run_ok(url, &["inbox", "prune"]).await, nothing, "all of it is young");
    leased.inbox().sweep_once().await.unwrap();
    pass(&env, 24 * 10).await;
    let would = "would prune 4 keys, 1 dead letter, 1 abandoned claim; effects of unknown outcome: 1\n";
    assert_eq!(run_ok(url, &["inbox", "prune", "--dry-run"]).await, would);
    assert_eq!(kept(&env).await, [4, 1, 1, 1], "counting changes nothing");
    let output = run_ok(url, &["inbox", "prune", "--by", "mina", "--json"]).await;
    let rows = json!({ "keys": 4, "dead_letters": 1, "kept_letters": 0, "claims": 1, "unknown_effects": 1 });
    let expected = json!({ "action": "prune", "inboxes": rows, "dry_run": false });
    assert_eq!((serde_json::from_str::<Value>(&output).unwrap(), kept(&env).await), (expected, [0; 4]));
    let sql = "SELECT concat_ws(' ', action, operator, messages, reason) FROM oncebox.audit";
    let audit: String = env.pg().await.query_one(sql, &[]).await.unwrap().get(0);
    let expected = "prune mina 6 beyond the retentions of inboxes: keys 4, dead letters 1, claims 1, effects of unknown \
                    outcome 1";
    assert_eq!(audit, expected);
    let (code, _, log) = run(url, &["inbox", "prune", "--retention", "1d"]).await;
    assert!(code == 64 && log.contains("unexpected argument"), "{log}");
}
