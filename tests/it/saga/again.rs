//! Business ids that come again, and deletions: of finished sagas, and of answers of others.

use std::{collections::HashSet, time::Duration};

use oncebox_saga::{Definition, Error, Orchestrator, Step, Timers};
use oncebox_tests::eventually;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::saga::shop::{OrderData, Shop, data, is_handled, orchestrator, reply};

const LIMIT: Duration = Duration::from_secs(40);

/// Retention has deleted the saga, and its commands are in the outbox and at its participants: a
/// new one would send nothing, and its compensation would undo the effects of the first.
#[tokio::test]
async fn a_business_id_of_a_deleted_saga_is_refused() {
    let mut shop = Shop::new(&[]).await;
    shop.start("o-1", &data(500)).await.unwrap();
    for step in ["reserve", "pay", "ship"] {
        shop.tell(&format!("o-1:order:{step}"), "done 7").await;
    }
    shop.is("o-1", "completed").await;
    shop.client.query("SELECT oncebox.sweep_sagas('0 s', 10)", &[]).await.unwrap();
    let before = shop.everything().await;
    shop.client.batch_execute("CREATE TABLE purchase (id text)").await.unwrap();
    let transaction = shop.client.transaction().await.unwrap();
    transaction.batch_execute("INSERT INTO purchase VALUES ('o-1')").await.unwrap();
    let refused = shop.orchestrator.start(&transaction, &shop.order, "o-1", &data(500)).await.unwrap_err();
    assert!(matches!(&refused, Error::AlreadySent(key) if key.as_str() == "o-1:order:reserve"), "{refused}");
    // Even a caller that does not mind the error keeps nothing.
    let _ = transaction.commit().await;
    assert_eq!(shop.everything().await, before);
    assert_eq!(shop.number("SELECT count(*) FROM purchase").await, 0);
    assert_eq!(shop.orchestrator.counts().started, 1);
}

/// Data that has another JSON form each time is the same data.
#[tokio::test]
async fn a_start_with_a_set_in_its_data_is_known_again() {
    type Tags = HashSet<String>;
    let mut shop = Shop::new(&[]).await;
    let step = Step::new("a", "a.do", |tags: &Tags| tags.len()).scope("x").no_compensation();
    let tagged = Definition::<Tags>::builder("tagged", 1).step(step).build().unwrap();
    let orchestrator = Orchestrator::builder("sagas.replies".parse().unwrap()).definition(&tagged);
    let orchestrator = orchestrator.build().unwrap();
    // Each set has an order of its own.
    let tags = |count: u32| (0..count).map(|number| format!("tag {number}")).collect::<Tags>();
    for (count, is_new) in [(20, Some(true)), (20, Some(false)), (20, Some(false)), (19, None)] {
        let transaction = shop.client.transaction().await.unwrap();
        let started = orchestrator.start(&transaction, &tagged, "o-1", &tags(count)).await;
        match is_new {
            Some(is_new) => assert_eq!(started.unwrap().is_new, is_new),
            None => assert!(matches!(started, Err(Error::OtherData { .. })), "{started:?}"),
        }
        transaction.commit().await.unwrap();
    }
}

/// One of several first commands is in the outbox: none of them is sent.
#[tokio::test]
async fn of_parallel_first_steps_all_are_sent_or_none() {
    let mut shop = Shop::new(&[]).await;
    let step = |name: &str| {
        Step::new(name, format!("{name}.do"), |order: &OrderData| order.cents).scope("x").no_compensation()
    };
    let both = Definition::builder("both", 1).parallel([step("a"), step("b")]).build().unwrap();
    let orchestrator = orchestrator(&[&both]);
    shop.client.batch_execute("SELECT oncebox.enqueue('o-1:both:b', 'b.do', '500')").await.unwrap();
    let before = shop.everything().await;
    let transaction = shop.client.transaction().await.unwrap();
    let refused = orchestrator.start(&transaction, &both, "o-1", &data(500)).await.unwrap_err();
    assert!(matches!(&refused, Error::AlreadySent(key) if key.as_str() == "o-1:both:b"), "{refused}");
    let _ = transaction.commit().await;
    assert_eq!(shop.everything().await, before);
}

/// A later command is in the outbox already, byte by byte: no participant would answer it for this
/// saga.
#[tokio::test]
async fn a_command_that_was_sent_before_puts_its_saga_aside() {
    let mut shop = Shop::new(&[]).await;
    shop.start("o-1", &data(500)).await.unwrap();
    let sent = r#"SELECT oncebox.enqueue('o-1:order:pay', 'pay.do', '{"cents":500,"reservation":7}',
                                         '{"Oncebox-Reply-To": "sagas.replies"}')"#;
    shop.client.batch_execute(sent).await.unwrap();
    for (deliveries, state) in [(1, "running"), (2, "quarantined")] {
        let answer = reply("o-1:order:reserve", "done 7", "reply-1").deliveries(deliveries);
        shop.replies().run(&shop.orchestrator.replies(), &answer).await.unwrap();
        shop.is("o-1", state).await;
        shop.client.batch_execute("UPDATE oncebox.inbox_attempt SET due_at = NULL").await.unwrap();
    }
    let reason = shop.state("o-1").await.1.unwrap();
    assert!(reason.contains("\"o-1:order:pay\" was sent before"), "{reason}");
}

/// A number of sagas that have finished two hours ago.
async fn finished(shop: &Shop, count: i64) {
    let sql = "INSERT INTO oncebox.saga (type, business_id, key, version, fingerprint, state, data, began_with, scope, finished_at)
               SELECT 'order', 'old-' || n, 'old-' || n || ':order', 1, '', 'completed', '{}', '', 'orders',
                      clock_timestamp() - interval '2 hours'
               FROM generate_series(1, $1::bigint) AS n";
    shop.client.execute(sql, &[&count]).await.unwrap();
}

/// Five thousand, while a process deletes a thousand at a time.
#[tokio::test]
async fn finished_sagas_go_after_their_retention_however_many_there_are() {
    let mut shop = Shop::new(&[]).await;
    for id in ["young", "open"] {
        shop.start(id, &data(500)).await.unwrap();
    }
    shop.tell("young:order:reserve", "rejected \"sold out\"").await;
    finished(&shop, 5_000).await;
    let keeps = Orchestrator::builder("sagas.replies".parse().unwrap()).definition(&shop.order);
    let keeps = keeps.retention(Duration::from_secs(3_600)).build().unwrap();
    let (timers, stop) = (keeps.timers(shop.env.pool(2)), CancellationToken::new());
    let swept = async {
        let left = "SELECT count(*) FROM oncebox.saga";
        eventually("the old ones are gone", LIMIT, async || (shop.number(left).await == 2).then_some(()))
            .await;
        stop.cancel();
    };
    tokio::join!(timers.run(stop.clone()), swept);
    shop.is("young", "compensated").await;
    shop.is("open", "running").await;
}

/// Other systems answer on the same subject. Their answers are kept for a while, in case a saga
/// comes after its answer. Their number has a limit, and looking for their sagas costs little.
#[tokio::test]
async fn answers_of_others_are_bounded_and_looking_at_them_costs_little() {
    let mut shop = Shop::new(&[]).await;
    assert!(is_handled(&shop.tell("o-1:order:reserve", "done 7").await));
    let foreign = "INSERT INTO oncebox.saga_event (key, is_orphan, kind, step, attempt, is_undo, created_at)
                   SELECT 'foreign-' || n || ':order', true, 'done', 'reserve', 1, false,
                          clock_timestamp() - interval '1 hour' - n * interval '1 ms'
                   FROM generate_series(1, 100500) AS n;
                   ANALYZE oncebox.saga_event, oncebox.saga";
    finished(&shop, 20_000).await;
    shop.client.batch_execute(foreign).await.unwrap();
    shop.start("o-1", &data(500)).await.unwrap();
    let pool = shop.env.pool(2);
    let timers = || shop.orchestrator.timers(pool.clone());
    assert_eq!(timers().run_once().await.unwrap(), 1, "its answer finds its saga among all these");
    assert_eq!(shop.sent("o-1").await, ["reserve", "pay"]);
    // A process that has just started looks at once; then it takes its time.
    let looks = async |process: &Timers, times: u32| {
        let begun = Instant::now();
        for _ in 0..times {
            assert_eq!(process.run_once().await.unwrap(), 0);
        }
        begun.elapsed()
    };
    let once = looks(&timers(), 1).await.min(looks(&timers(), 1).await);
    let often = looks(&timers(), 60).await;
    assert!(often < once * 30, "60 looks took {often:?}, one {once:?}");
    let (process, stop) = (timers(), CancellationToken::new());
    let swept = async {
        let left = "SELECT count(*) FROM oncebox.saga_event";
        let is_swept = async || (shop.number(left).await == 100_000).then_some(());
        eventually("the oldest are gone", LIMIT, is_swept).await;
        stop.cancel();
    };
    tokio::join!(process.run(stop.clone()), swept);
}
