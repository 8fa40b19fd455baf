//! The cashiers of the clients' READMEs are killed, and suspended for longer than their leases,
//! while the gateway refuses, loses answers and hangs, and every message is published three times.
//! Each order is charged, paid out and booked once. `effects` has cashiers beside one in Rust.

use std::{net::TcpListener, time::Duration};

use async_nats::HeaderMap;
use oncebox_tests::{Program, is_settled};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::shop::{Programs, Shop, lines};
use crate::relay::process::get;

/// Defines the test of each client.
macro_rules! clients {
    ($($client:ident),*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $client() {
            if let Some(programs) = Programs::of(stringify!($client)) {
                pay_once(programs).await;
            }
        }
    )*};
}
clients!(python);

const LIMIT: Duration = Duration::from_secs(240);
const ORDERS: u64 = 60;
const KILLS: usize = 46;
/// The numbers of orders that are too expensive: the gateway declines them.
const DECLINED: [u64; 2] = [13, 31];

async fn pay_once(programs: Programs) {
    let shop = Shop::new(programs).await;
    let client = shop.env.pg().await;
    client.batch_execute(include_str!("../../../examples/src/cashier/schema.sql")).await.unwrap();
    let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let mut gateway = Program::start("gateway", &[], &[("GATEWAY_LISTEN", address.clone())]).await.unwrap();
    let environment = [
        ("DATABASE_URL", shop.env.database_url().to_owned()),
        ("NATS_URL", shop.nats.url()),
        ("GATEWAY", address),
        ("LEASE_SECONDS", "1".to_owned()),
    ];
    let mut cashiers = Vec::new();
    for _ in 0..3 {
        let cashier = Program::start_file(&shop.programs.file("cashier"), &[], &environment).await;
        cashiers.push(cashier.unwrap());
    }
    publish(&shop).await;
    timeout(LIMIT, trouble(&shop, &mut cashiers)).await.expect("everything is settled in time");

    let (status, body) = get(([127, 0, 0, 1], port).into(), "/books").await;
    assert_eq!(status, 200, "{body}");
    let books: Value = serde_json::from_str(&body).unwrap();
    let paid: Vec<u64> = (0..ORDERS).filter(|number| !DECLINED.contains(number)).collect();
    for number in &paid {
        for (kind, step) in [("charges", "charge"), ("payouts", "pay-out")] {
            let line = &books[kind][format!("order-{number}:{step}")];
            let made = line["made"].as_array().map_or(0, Vec::len);
            assert_eq!(made, 1, "{kind} of order {number}: {line}");
        }
    }
    for trouble in ["refused", "lost", "late"] {
        assert!(books[trouble].as_u64().unwrap() >= 5, "{trouble}: the gateway has failed: {books}");
    }
    let booked = "SELECT order_id::text FROM settlement ORDER BY order_id";
    let expected: Vec<String> = paid.iter().map(u64::to_string).collect();
    assert_eq!(lines(&client, booked).await, expected, "each order is booked once");
    let ended = "SELECT status || ' ' || count(*) FROM oncebox.inbox GROUP BY status ORDER BY status";
    assert_eq!(lines(&client, ended).await, ["completed 58", "rejected 2"]);
    let left = "SELECT key FROM oncebox.inbox_claim UNION ALL SELECT key FROM oncebox.inbox_effect
                UNION ALL SELECT key FROM oncebox.dead_letter";
    assert_eq!(lines(&client, left).await, [""; 0]);
    for cashier in &mut cashiers {
        cashier.stop().await.unwrap();
    }
    gateway.stop().await.unwrap();
}

/// Publishes every order three times, all in random order.
async fn publish(shop: &Shop) {
    let mut numbers: Vec<u64> = (0..3).flat_map(|_| 0..ORDERS).collect();
    fastrand::shuffle(&mut numbers);
    for number in numbers {
        let cents = if DECLINED.contains(&number) { 2_000_000 } else { 995 };
        let payload = json!({ "order": number, "cents": cents }).to_string();
        let mut headers = HeaderMap::new();
        headers.insert("Idempotency-Key", &*format!("order-{number}"));
        let publish = shop.jetstream.publish_with_headers("orders.placed", headers, payload.into());
        publish.await.unwrap().await.unwrap();
    }
}

/// Kills one cashier after another, and suspends every fourth for longer than its lease, until all
/// messages are settled.
async fn trouble(shop: &Shop, cashiers: &mut [Program]) {
    let mut kills = 0;
    for round in 0_usize.. {
        sleep(Duration::from_millis(fastrand::u64(200..900))).await;
        if kills == KILLS {
            if is_settled(&shop.stream, "cashier").await {
                return;
            }
            continue;
        }
        let cashier = &mut cashiers[round % 3];
        if round % 4 == 3 {
            cashier.suspend(true).unwrap();
            sleep(Duration::from_millis(2500)).await;
            cashier.suspend(false).unwrap();
        } else {
            cashier.kill().await.unwrap();
            cashier.restart().await.unwrap();
            kills += 1;
        }
    }
}
