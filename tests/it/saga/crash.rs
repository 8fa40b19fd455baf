//! Orchestrators that die at each statement of a transition, or hang in it.

use std::{pin::pin, time::Duration};

use oncebox_inbox::Inbox;
use oncebox_testkit::TestKit;
use oncebox_tests::eventually;

use crate::saga::shop::{Shop, data, orchestrator, reply};

const LIMIT: Duration = Duration::from_secs(60);

/// A transition is killed before and after each of its statements, and comes twice, and to two
/// processes at once: the tables are those of an undisturbed run.
#[tokio::test]
async fn a_crash_at_each_statement_of_a_transition_changes_nothing() {
    let mut shop = Shop::new(&[]).await;
    shop.start("o-1", &data(500)).await.unwrap();
    shop.tell("o-1:order:reserve", "done 7").await;
    // Comes before its time, and is applied in the same transaction.
    shop.tell("o-1:order:ship", "rejected").await;
    let Shop { env, order, client, .. } = shop;
    drop(client);
    let kit = TestKit::new(env.database_url()).message(reply("o-1:order:pay", "done", "o-1:order:pay:reply"));
    let checked = kit.check(|scratch| {
        let inbox = Inbox::builder(scratch.pool(2)).scope("saga:replies").single_tenant();
        (inbox.build().unwrap(), orchestrator(&[&order]).replies())
    });
    let report = Box::pin(checked).await.unwrap();
    report.assert_once();
    assert!(report.statements() > 8, "a transition has so many: {report}");
}

/// A process that is suspended in the middle of a look holds its sagas for seconds, not for ever.
#[tokio::test]
async fn what_a_hanging_orchestrator_holds_is_taken_from_it() {
    let mut shop = Shop::new(&[]).await;
    shop.start("o-1", &data(500)).await.unwrap();
    let late = "UPDATE oncebox.saga_step SET deadline_at = clock_timestamp();
                UPDATE oncebox.saga SET due_at = clock_timestamp()";
    shop.client.batch_execute(late).await.unwrap();
    let (proxy, pool) = shop.env.pool_through_proxy(1).await;
    let timers = shop.orchestrator.timers(pool);
    proxy.lose_when_client_sends(b"COMMIT\0");
    let mut hangs = pin!(timers.run_once());
    tokio::select! {
        ended = &mut hangs => panic!("its commit is lost: {ended:?}"),
        () = eventually("it commits", LIMIT, async || (!proxy.is_armed()).then_some(())) => {}
    }
    // No caller asks it to go on meanwhile.
    assert_eq!(shop.look().await, 0, "it has the saga");
    eventually("another has the saga", LIMIT, async || (shop.look().await == 1).then_some(())).await;
    shop.is("o-1", "compensating").await;
    hangs.await.unwrap_err();
    assert_eq!(shop.sent("o-1").await, ["reserve", "reserve:undo"]);
}
