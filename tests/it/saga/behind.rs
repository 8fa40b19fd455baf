//! Answers that came in time while no process led are taken before deadlines pass.

use std::time::Duration;

use async_nats::{HeaderMap, jetstream};
use oncebox_inbox::Consumer;
use oncebox_saga::{Definition, Orchestrator, Step};
use oncebox_tests::eventually;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::saga::shop::{OrderData, PARTICIPANT, Shop, data};

const LIMIT: Duration = Duration::from_secs(60);
const SAGAS: usize = 40;

#[tokio::test]
async fn a_step_that_was_answered_while_nobody_led_is_not_undone() {
    let mut shop = Shop::new(&[]).await;
    let cents = |order: &OrderData| order.cents;
    let reserve =
        Step::new("reserve", "reserve.do", cents).scope(PARTICIPANT).deadline(Duration::from_secs(1));
    let reserve = reserve.compensation("reserve.undo", cents);
    let pay = Step::new("pay", "pay.do", cents).scope(PARTICIPANT).pivot();
    shop.order = Definition::builder("order", 3).step(reserve).step(pay).build().unwrap();
    let subject = shop.env.subject("replies");
    shop.orchestrator =
        Orchestrator::builder(subject.parse().unwrap()).definition(&shop.order).build().unwrap();
    let stream = shop.env.stream().await;
    let jetstream = shop.env.jetstream().await;
    for number in 0..SAGAS {
        shop.start(&format!("o-{number}"), &data(500)).await.unwrap();
        let (command, key) = (format!("o-{number}:order:reserve"), format!("o-{number}:order:reserve:reply"));
        let headers = [("Idempotency-Key", &*key), ("In-Reply-To", &command), ("Reply-Outcome", "done")];
        let headers = headers.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        let headers: HeaderMap = headers.into_iter().collect();
        jetstream.publish_with_headers(subject.clone(), headers, "7".into()).await.unwrap().await.unwrap();
    }
    sleep(Duration::from_millis(1_500)).await;
    let shutdown = CancellationToken::new();
    let mine = jetstream::new(shop.env.nats().await);
    let replies = Consumer::new(mine, stream.cached_info().config.name.clone(), "replies").concurrency(1);
    let answered = async {
        let done = "SELECT count(*) FROM oncebox.inbox WHERE scope = 'saga:replies'";
        let all = i64::try_from(SAGAS).unwrap();
        eventually("all are answered", LIMIT, async || (shop.number(done).await == all).then_some(())).await;
        // Deadlines are watched again.
        let leads = async || shop.orchestrator.watched().succeeded.map(|_| ());
        eventually("deadlines are watched", LIMIT, leads).await;
        shutdown.cancel();
    };
    let leading = shop.orchestrator.run(shop.env.pool(3), replies, None, shutdown.clone());
    let (ended, ()) = tokio::join!(leading, answered);
    ended.unwrap();
    assert_eq!(shop.number("SELECT count(*) FROM oncebox.message WHERE key LIKE '%:order:pay'").await, 40);
    assert_eq!(shop.number("SELECT count(*) FROM oncebox.message WHERE key LIKE '%:undo'").await, 0);
}
