//! Orchestrators that die: at each statement of a transition.

use oncebox_inbox::Inbox;
use oncebox_testkit::TestKit;

use crate::saga::shop::{Shop, data, orchestrator, reply};

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
