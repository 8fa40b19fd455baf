//! Duplicates that follow each other over one connection: their keys are only looked up.

use std::time::Duration;

use oncebox_inbox::Inbox;

use crate::inbox::{
    pipeline::{each, ends_by_number},
    support::{Does, SCOPE, builder, effects, environment, inbox, message, transactions},
};

/// Where duplicates follow each other, keys are looked up without a claim and without a commit; all
/// other messages among them end as they would alone, and new ones run once.
#[tokio::test]
async fn among_duplicates_that_are_only_looked_up_everything_else_ends_as_ever() {
    let env = environment().await;
    let (inbox, handler) = (inbox(&env), ends_by_number());
    let copies = || (0..20).map(|n| message(&format!("k{n}"), if n % 5 == 2 { 2 } else { 1 }));
    let firsts = copies().chain([message("dead", 4)]);
    each(&inbox, &handler, firsts).await;
    let runs = handler.runs();
    let others = [
        (message("k7", 9), "k7 mismatch"),
        (message("dead", 4), "dead dead"),
        (message("new", 1), "new handled"),
        (message("fails", 6), "fails retry"),
        (message("none", 3), "none retry"),
    ];
    for (other, expected) in others {
        let key = other.header_value("Idempotency-Key").unwrap().to_owned();
        let queue = copies().chain([other.clone(), other]).chain(copies());
        let ended = each(&inbox, &handler, queue).await;
        let twice: Vec<_> = ended.iter().filter(|ended| ended.starts_with(&format!("{key} "))).collect();
        let again = if key == "new" { "new replayed" } else { expected };
        let replayed = ended.iter().filter(|ended| ended.ends_with(" replayed")).count();
        if key == "k7" {
            assert_eq!(twice.iter().filter(|ended| **ended == expected).count(), 2, "{ended:?}");
        } else {
            assert_eq!(twice, [expected, again], "{ended:?}");
        }
        assert_eq!(replayed, 40 + usize::from(key == "new"), "{ended:?}");
    }
    assert_eq!(handler.runs() - runs, 1 + 2 + 2, "what is new once, what failed each time");
    assert_eq!(effects(&env).await, 21);
}

/// A key that is only looked up counts as new after its retention too.
#[tokio::test]
async fn among_duplicates_a_forgotten_key_counts_as_new() {
    let env = environment().await;
    let hour = Duration::from_secs(3600);
    let inbox = builder(&env).retention(hour).build().unwrap();
    let all = || (0..10).map(|n| message(&format!("k{n}"), n));
    each(&inbox, &Does::effect(), all()).await;
    let old = "UPDATE oncebox.inbox SET created_at = created_at - interval '2 hours' WHERE key = 'k8'";
    assert_eq!(env.pg().await.execute(old, &[]).await.unwrap(), 1);
    let ended = each(&inbox, &Does::effect(), all().chain(all())).await;
    let handled: Vec<&str> =
        ended.iter().map(String::as_str).filter(|ended| ended.ends_with(" handled")).collect();
    assert_eq!((ended.len(), handled), (20, vec!["k8 handled"]), "{ended:?}");
}

/// A run of duplicates in which nothing is claimed has nothing to commit.
#[tokio::test]
async fn duplicates_that_follow_each_other_cost_no_commit() {
    let env = environment().await;
    let mut counts = Vec::new();
    for _ in 0..3 {
        counts.push(transactions(&env).await.0);
        let pool = env.pool(1);
        let inbox = Inbox::builder(pool.clone()).scope(SCOPE).single_tenant().build().unwrap();
        let all = (0..200).map(|n| message(&format!("k{n}"), n));
        assert_eq!(each(&inbox, &Does::effect(), all).await.len(), 200);
        pool.close();
    }
    counts.push(transactions(&env).await.0);
    let (first, copies) = (counts[1] - counts[0], counts[3] - counts[2]);
    assert!(first >= 200 && copies < 100, "{first} and {copies} commits");
}
