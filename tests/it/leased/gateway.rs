//! The example of leased mode in real processes: cashiers are killed, and suspended for longer than
//! their leases, while the gateway loses answers, and every message is published three times. Each
//! order is charged once, paid out once and booked once.

use std::{collections::BTreeMap, net::TcpListener, time::Duration};

use async_nats::HeaderMap;
use oncebox_tests::{Program, TestEnv, is_settled};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{inbox::support::count, relay::process::get};

const LIMIT: Duration = Duration::from_secs(150);
const ORDERS: u64 = 40;
/// The numbers of orders that are too expensive: the gateway declines them.
const DECLINED: [u64; 2] = [13, 31];

struct Site {
    env: TestEnv,
    gateway: Program,
    port: u16,
    cashiers: Vec<Program>,
}

impl Site {
    async fn start() -> Self {
        let env = TestEnv::new().await;
        env.stream().await;
        let schema = include_str!("../../../examples/src/cashier/schema.sql");
        env.pg().await.batch_execute(schema).await.unwrap();
        let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        let address = format!("127.0.0.1:{port}");
        let gateway = Program::start("gateway", &[], &[("GATEWAY_LISTEN", address.clone())]).await.unwrap();
        let environment = [
            ("DATABASE_URL", env.database_url().to_owned()),
            ("NATS_URL", env.nats_url().to_owned()),
            ("STREAM", env.name().to_owned()),
            ("SUBJECT_PREFIX", env.subject("")),
            ("GATEWAY", address),
            ("LEASE_SECONDS", "1".to_owned()),
        ];
        let mut cashiers = Vec::new();
        for _ in 0..3 {
            cashiers.push(Program::start("cashier", &[], &environment).await.unwrap());
        }
        Self { env, gateway, port, cashiers }
    }

    /// Publishes every order three times, all in random order.
    async fn publish(&self) {
        let jetstream = self.env.jetstream().await;
        let mut numbers: Vec<u64> = (0..3).flat_map(|_| 0..ORDERS).collect();
        fastrand::shuffle(&mut numbers);
        for number in numbers {
            let cents = if DECLINED.contains(&number) { 2_000_000 } else { 995 };
            let payload = json!({"order": number, "customer": 1, "number": number, "cents": cents});
            let mut headers = HeaderMap::new();
            headers.insert("Idempotency-Key", &*format!("order-{number}"));
            let subject = self.env.subject("orders.placed");
            let publish = jetstream.publish_with_headers(subject, headers, payload.to_string().into());
            publish.await.unwrap().await.unwrap();
        }
    }

    /// Kills one cashier after another, or suspends it for longer than its lease, until all
    /// messages are settled.
    async fn trouble(&mut self) {
        for round in 0_usize.. {
            if self.settled().await {
                return;
            }
            sleep(Duration::from_millis(fastrand::u64(200..900))).await;
            let victim = round % self.cashiers.len();
            if round >= 12 {
                continue;
            }
            let cashier = &mut self.cashiers[victim];
            if round % 2 == 0 {
                cashier.kill().await.unwrap();
                cashier.restart().await.unwrap();
            } else {
                cashier.suspend(true).unwrap();
                sleep(Duration::from_millis(2500)).await;
                cashier.suspend(false).unwrap();
            }
        }
    }

    async fn settled(&self) -> bool {
        is_settled(&self.env.stream().await, "cashier").await
    }

    async fn books(&self) -> Value {
        let (status, body) = get(([127, 0, 0, 1], self.port).into(), "/books").await;
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }
}

/// The number of requests, and of charges or payouts, of each key.
fn lines(books: &Value, kind: &str) -> BTreeMap<String, (u64, usize)> {
    let lines = books[kind].as_object().unwrap().iter();
    lines
        .map(|(key, line)| {
            (key.clone(), (line["requests"].as_u64().unwrap(), line["made"].as_array().unwrap().len()))
        })
        .collect()
}

/// With real processes and a real HTTP server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_payment_is_made_once_whoever_dies_or_hangs() {
    let mut site = Site::start().await;
    site.publish().await;
    tokio::time::timeout(LIMIT, site.trouble()).await.expect("everything is settled in time");

    let books = site.books().await;
    let (charges, payouts) = (lines(&books, "charges"), lines(&books, "payouts"));
    let paid: Vec<u64> = (0..ORDERS).filter(|number| !DECLINED.contains(number)).collect();
    for number in &paid {
        let (charge, payout) = (format!("order-{number}:charge"), format!("order-{number}:pay-out"));
        assert_eq!(charges[&charge].1, 1, "charges of {charge}: {:?}", charges[&charge]);
        assert_eq!(payouts[&payout].1, 1, "payouts of {payout}: {:?}", payouts[&payout]);
    }
    assert_eq!((charges.len(), payouts.len()), (paid.len(), paid.len()), "no key but those");
    for trouble in ["refused", "lost", "late"] {
        assert!(
            books[trouble].as_u64().unwrap() >= 5,
            "{trouble}: the gateway has failed often enough: {books}"
        );
    }

    let pg = site.env.pg().await;
    let booked = "SELECT order_id, count(*) FROM settlement GROUP BY order_id ORDER BY order_id";
    let booked = pg.query(booked, &[]).await.unwrap();
    let booked: Vec<(i64, i64)> = booked.iter().map(|row| (row.get(0), row.get(1))).collect();
    let expected: Vec<(i64, i64)> = paid.iter().map(|number| (i64::try_from(*number).unwrap(), 1)).collect();
    assert_eq!(booked, expected);
    let ended = "SELECT status, count(*) FROM oncebox.inbox GROUP BY status ORDER BY status";
    let ended = pg.query(ended, &[]).await.unwrap();
    let ended: Vec<(String, i64)> = ended.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(ended, [("completed".to_owned(), 38), ("rejected".to_owned(), 2)]);
    for table in ["oncebox.inbox_claim", "oncebox.inbox_effect", "oncebox.dead_letter"] {
        assert_eq!(count(&site.env, table).await, 0, "{table}");
    }
    let logs: String = site.cashiers.iter().map(Program::log).collect();
    // Whether a lease was lost depends on which cashier is suspended when, so only `make chaos`
    // demands that.
    let part = "taken over from a process whose lease ended";
    assert!(logs.contains(part), "no cashier logged \"{part}\"");
    for cashier in &mut site.cashiers {
        cashier.stop().await.unwrap();
    }
    site.gateway.stop().await.unwrap();
}
