//! The order's flow without an orchestrator: steps fail, come late, or die, and the books of the
//! three services balance in the end.

use oncebox_outbox::{Message, Outbox};
use oncebox_tests::{eventually, is_settled};
use serde_json::Value;

use super::site::{LIMIT, Site, kill, order};

const ORDERS: usize = 24;

/// Says an event about an order, as the shop does.
async fn say(site: &Site, order: &Value, event: &str) {
    let mut client = site.shop.pg().await;
    let transaction = client.transaction().await.unwrap();
    let key = format!("{}:{event}", order["id"].as_str().unwrap()).parse().unwrap();
    let message = Message::json(key, Site::subject(event).parse().unwrap(), order).unwrap();
    Outbox::default().enqueue(&transaction, &message).await.unwrap();
    transaction.commit().await.unwrap();
}

/// How many messages were enqueued, in all outboxes.
async fn said(site: &Site) -> u64 {
    let mut said = 0;
    for env in site.services.iter().chain([&site.shop]) {
        let sql = "SELECT count(*) FROM oncebox.message";
        said += env.pg().await.query_one(sql, &[]).await.unwrap().get::<_, i64>(0);
    }
    said.unsigned_abs()
}

/// Whether all that was said is in the stream, all that is there is handled, and no more was said
/// meanwhile.
async fn is_quiet(site: &Site) -> bool {
    let (before, stream) = (said(site).await, site.stream().await);
    if stream.get_info().await.unwrap().state.messages != before {
        return false;
    }
    for durable in [
        "inventory-orders-placed",
        "inventory-payments-declined",
        "inventory-payments-refunded",
        "billing-stock-reserved",
        "billing-parcels-refused",
        "shipping-payments-charged",
        "shipping-orders-cancelled",
    ] {
        if !is_settled(&stream, durable).await {
            return false;
        }
    }
    said(site).await == before
}

/// Every sixth order is cancelled, some of these before they are placed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_that_react_to_each_other_s_events_end_with_balanced_books() {
    let mut site = Site::start(&["--choreography"]).await;
    for number in 0..ORDERS {
        let (order, is_cancelled) = (order(number), number % 6 == 3);
        if is_cancelled && number < ORDERS / 2 {
            say(&site, &order, "orders.cancelled").await;
        }
        say(&site, &order, "orders.placed").await;
        if is_cancelled && number >= ORDERS / 2 {
            say(&site, &order, "orders.cancelled").await;
        }
        if number % 8 == 7 {
            kill(&mut site.participants[number / 8]).await;
        }
    }
    eventually("everything that was said is heard", LIMIT, async || is_quiet(&site).await.then_some(()))
        .await;
    let sent = site.balance().await;
    let ordinary = (0..ORDERS).filter(|number| ![1, 2, 3].contains(&(number % 6))).count();
    assert!((1..=ordinary).contains(&sent.len()), "{} of {ordinary}: {sent:?}", sent.len());
    site.stop().await;
}
