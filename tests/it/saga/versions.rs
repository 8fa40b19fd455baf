//! Instances go on with the definition that they began with, or no orchestrator starts.

use oncebox_inbox::{Inbox, Verdict};
use oncebox_saga::{Definition, Error, Orchestrator, Step};

use crate::saga::shop::{OrderData, PARTICIPANT, Shop, data, is_handled, orchestrator, order, reply};

#[tokio::test]
async fn an_upgrade_with_instances_in_flight() {
    let mut shop = Shop::new(&[]).await;
    shop.start("old", &data(500)).await.unwrap();
    let (first, second) = (order(1, &[]), order(2, &["tell"]));

    // A program with the new version only does not start, and names the missing one.
    let bare = orchestrator(&[&second]);
    let missing = bare.check(&shop.client).await.unwrap_err();
    assert!(matches!(&missing, Error::InFlight(_)), "{missing}");
    assert!(missing.to_string().contains("\"order\" version 1 (1 in flight)"), "{missing}");
    // If it runs all the same, it leaves the instances of the other version alone.
    shop.due("old").await;
    assert_eq!(bare.timers(shop.env.pool(2)).run_once().await.unwrap(), 0);
    let answer = reply("old:order:reserve", "done 7", "a-1");
    let verdict = shop.replies().run(&bare.replies(), &answer).await.unwrap();
    assert!(matches!(verdict, Verdict::Retry { .. }), "{verdict:?}");

    // With both it starts, and each goes its way.
    let both = orchestrator(&[&first, &second]);
    both.check(&shop.client).await.unwrap();
    let transaction = shop.client.transaction().await.unwrap();
    both.start(&transaction, &second, "new", &data(500)).await.unwrap();
    transaction.commit().await.unwrap();
    for id in ["old", "new"] {
        for step in ["reserve", "pay", "ship"] {
            let key = format!("{id}:order:{step}");
            let told =
                shop.replies().run(&both.replies(), &reply(&key, "done 7", &format!("{key}:reply"))).await;
            assert!(is_handled(&told.unwrap()));
        }
    }
    shop.is("old", "completed").await;
    assert_eq!(shop.sent("new").await, ["reserve", "pay", "ship", "tell"]);
    // The last of the first version has finished: it may go.
    bare.check(&shop.client).await.unwrap();
    let graphs = "SELECT count(*) FROM oncebox.saga_definition";
    assert_eq!(shop.number(graphs).await, 2, "operators see both graphs");
}

#[tokio::test]
async fn a_graph_that_changed_under_its_version_is_noticed() {
    let mut shop = Shop::new(&[]).await;
    shop.start("o-1", &data(500)).await.unwrap();
    let changed = orchestrator(&[&order(1, &["tell"])]);
    let missing = changed.check(&shop.client).await.unwrap_err().to_string();
    assert!(missing.contains("another graph") && missing.contains("version 1 (1 in flight)"), "{missing}");
    let transaction = shop.client.transaction().await.unwrap();
    let unknown = shop.orchestrator.start(&transaction, &order(2, &[]), "o-2", &data(1)).await;
    assert!(matches!(unknown, Err(Error::NotRegistered { version: 2, .. })), "{unknown:?}");
    drop(transaction);
    // A saga in quarantine keeps no orchestrator from starting.
    shop.client.batch_execute("UPDATE oncebox.saga SET state = 'quarantined', due_at = NULL").await.unwrap();
    changed.check(&shop.client).await.unwrap();
}

/// Its successor's sagas are in flight when an old process starts again: it goes on with its own.
#[tokio::test]
async fn an_old_process_restarts_in_a_rolling_deployment() {
    let mut shop = Shop::new(&[]).await;
    let (newer, other) = (order(2, &["tell"]), Definition::builder("return", 1));
    let other = other.step(Step::new("take", "take.do", |order: &OrderData| order.cents).scope("x").pivot());
    let newer_process = orchestrator(&[&shop.order, &newer, &other.build().unwrap()]);
    let transaction = shop.client.transaction().await.unwrap();
    newer_process.start(&transaction, &newer, "new", &data(500)).await.unwrap();
    transaction.commit().await.unwrap();
    shop.start("old", &data(500)).await.unwrap();
    shop.orchestrator.check(&shop.client).await.unwrap();
    // An answer for the newer version waits for a process that has it.
    let answer = reply("new:order:reserve", "done 7", "a-1");
    let verdict = shop.replies().run(&shop.orchestrator.replies(), &answer).await.unwrap();
    assert!(matches!(verdict, Verdict::Retry { .. }), "{verdict:?}");
    assert!(is_handled(&shop.tell("old:order:reserve", "done 7").await));
    assert!(is_handled(&shop.replies().run(&newer_process.replies(), &answer).await.unwrap()));
    assert_eq!(shop.sent("new").await, ["reserve", "pay"]);
}

/// Two orchestrators with different definitions in one database, which hear the same answers and
/// deaths: each starts, and deals with its own sagas only.
#[tokio::test]
async fn orchestrators_in_one_database_leave_each_other_alone() {
    let mut shop = Shop::new(&[]).await;
    let returns = Definition::builder("return", 1);
    let take = Step::new("take", "take.do", |order: &OrderData| order.cents).scope(PARTICIPANT).pivot();
    let returns = returns.step(take).build().unwrap();
    let second = Orchestrator::builder("returns.replies".parse().unwrap()).definition(&returns);
    let second = second.scope("returns").build().unwrap();
    shop.start("o-1", &data(500)).await.unwrap();
    let transaction = shop.client.transaction().await.unwrap();
    second.start(&transaction, &returns, "r-1", &data(500)).await.unwrap();
    transaction.commit().await.unwrap();
    for orchestrator in [&shop.orchestrator, &second] {
        orchestrator.check(&shop.client).await.unwrap();
    }
    let before = shop.everything().await;
    // Not snoozed for a day, nor a dead letter.
    assert!(is_handled(&shop.tell("r-1:return:take", "done").await));
    assert!(is_handled(&shop.die("r-1:return:take", 1).await));
    assert_eq!(shop.orchestrator.counts().foreign, 2);
    shop.due("r-1").await;
    assert_eq!(shop.look().await, 0);
    // But for the time that it was due at, whose fraction of a second may be shorter.
    let length = |text: &str| -> usize {
        text.split('.').map(|part| part.trim_start_matches(|c: char| c.is_ascii_digit()).len()).sum()
    };
    assert_eq!(length(&shop.everything().await), length(&before), "nothing was changed");
    let inbox = Inbox::builder(shop.env.pool(2)).scope("returns:replies").single_tenant().build().unwrap();
    let answer = reply("r-1:return:take", "done", "a-1");
    assert!(is_handled(&inbox.run(&second.replies(), &answer).await.unwrap()));
    shop.is("r-1", "completed").await;
}

/// The definition of these tests, as it must not change by accident.
#[test]
fn the_graph_of_a_definition_is_golden() {
    let golden = "flowchart LR
  start([\"order 1\"])
  s0[\"reserve<br/>reserve.do\"]
  s0 -.-> u0([\"reserve.undo\"])
  s1[\"pay<br/>pay.do\"]
  s1 -.-> u1([\"pay.undo\"])
  s2{{\"ship<br/>ship.do\"}}
  start --> s0
  s0 --> s1
  s1 --> s2
";
    assert_eq!(order(1, &[]).graph().mermaid(), golden);
}
