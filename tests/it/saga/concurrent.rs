//! Many sagas under way at once, led by two orchestrators: each ends as its answers say, and each
//! of its commands was sent once. `ONCEBOX_TEST_SAGAS` says how many; 500 by default.

use futures_util::{StreamExt, stream};
use oncebox_inbox::Inbox;
use oncebox_saga::{Definition, Orchestrator, OrchestratorBuilder};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    postgres::pgbouncer::{left_prepared, pool, pooler},
    saga::shop::{OrderData, Shop, data, is_handled, reply},
};

const SAGAS: usize = 500;
/// Answers that are given at the same time.
const AT_ONCE: usize = 8;

/// An orchestrator as a process of its own has it.
struct Process {
    orchestrator: Orchestrator,
    replies: Inbox,
}

fn builder(order: &Definition<OrderData>) -> OrchestratorBuilder {
    Orchestrator::builder("sagas.replies".parse().unwrap()).definition(order)
}

/// Every fifth is not shipped.
fn is_shipped(number: usize) -> bool {
    number % 5 != 3
}

/// Starts a number of sagas, and answers each of their commands when all have come as far; then all
/// are counted.
async fn lead(shop: &mut Shop, processes: &[Process; 2], sagas: usize) {
    let transaction = shop.client.transaction().await.unwrap();
    for number in 0..sagas {
        let (id, order) = (format!("o-{number}"), data(number.try_into().unwrap()));
        let by = &processes[number % 2].orchestrator;
        by.start(&transaction, &shop.order, &id, &order).await.unwrap();
    }
    transaction.commit().await.unwrap();
    let waves =
        [("reserve", true), ("pay", true), ("ship", true), ("pay:undo", false), ("reserve:undo", false)];
    for (command, is_of_all) in waves {
        let numbers = || (0..sagas).filter(|number| is_of_all || !is_shipped(*number));
        let open = "SELECT count(*) FROM oncebox.saga WHERE finished_at IS NULL";
        let under_way = i64::try_from(numbers().count()).unwrap();
        assert_eq!(shop.number(open).await, under_way, "before {command}");
        let told = stream::iter(numbers());
        told.for_each_concurrent(AT_ONCE, async |number| {
            let answer = if command == "ship" && !is_shipped(number) { "rejected" } else { "done 7" };
            let key = format!("o-{number}:order:{command}");
            let message = reply(&key, answer, &format!("{key}:reply"));
            let Process { orchestrator, replies } = &processes[number / 2 % 2];
            assert!(is_handled(&replies.run(&orchestrator.replies(), &message).await.unwrap()), "{key}");
        })
        .await;
    }
    let shipped = (0..sagas).filter(|number| is_shipped(*number)).count();
    for (state, expected) in [("completed", shipped), ("compensated", sagas - shipped)] {
        let sql = format!("SELECT count(*) FROM oncebox.saga WHERE state = '{state}' AND due_at IS NULL");
        assert_eq!(shop.number(&sql).await, i64::try_from(expected).unwrap(), "{state}");
    }
    let commands = i64::try_from(3 * sagas + 2 * (sagas - shipped)).unwrap();
    assert_eq!(shop.number("SELECT count(*) FROM oncebox.message").await, commands);
    assert_eq!(shop.number("SELECT count(*) FROM oncebox.saga_event").await, 0);
    let applied: u64 = processes.iter().map(|process| process.orchestrator.counts().applied).sum();
    assert_eq!(applied, commands.unsigned_abs());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(clippy::disallowed_methods, reason = "a run by hand may ask for more")]
async fn hundreds_of_sagas_at_once_end_as_their_answers_say() {
    let sagas = std::env::var("ONCEBOX_TEST_SAGAS").map_or(SAGAS, |number| number.parse().unwrap());
    let mut shop = Shop::new(&[]).await;
    let (mut timers, shutdown) = (JoinSet::new(), CancellationToken::new());
    let processes = [(); 2].map(|()| {
        let (orchestrator, pool) = (builder(&shop.order).build().unwrap(), shop.env.pool(AT_ONCE));
        let (watching, shutdown) = (orchestrator.timers(pool.clone()), shutdown.clone());
        timers.spawn(async move { watching.run(shutdown).await });
        let replies = Inbox::builder(pool).scope("saga:replies").single_tenant().build().unwrap();
        Process { orchestrator, replies }
    });
    let begun = tokio::time::Instant::now();
    lead(&mut shop, &processes, sagas).await;
    println!("{sagas} sagas took {:?}", begun.elapsed());
    shutdown.cancel();
    timers.join_all().await;
}

/// Each transaction may meet another session, where nothing that was prepared is known.
#[tokio::test]
async fn orchestrators_work_through_a_transaction_pooler() {
    let mut shop = Shop::new(&[]).await;
    let Some((_pooler, url)) = pooler(&shop.env).await else { return };
    let processes = [(); 2].map(|()| {
        let replies = Inbox::builder(pool(&url, AT_ONCE)).scope("saga:replies").single_tenant();
        Process {
            orchestrator: builder(&shop.order).behind_pooler().build().unwrap(),
            replies: replies.behind_pooler().build().unwrap(),
        }
    });
    lead(&mut shop, &processes, 20).await;
    assert_eq!(processes[0].orchestrator.timers(pool(&url, 2)).run_once().await.unwrap(), 0);
    assert_eq!(left_prepared(&url).await, 0);
}
