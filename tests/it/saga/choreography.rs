//! The order's flow without an orchestrator, as real processes with a database and a relay each:
//! whatever fails, comes late, or dies, the books of the three services balance in the end.

use std::{net::TcpListener, time::Duration};

use oncebox_outbox::{Message, Outbox};
use oncebox_tests::{Program, TestEnv, eventually, is_settled};
use serde_json::{Value, json};

use crate::relay::process::get;

const LIMIT: Duration = Duration::from_secs(90);
const ORDERS: usize = 24;
/// So many lamps are there, and each order takes one.
const STOCK: i32 = 18;
const TABLES: [(&str, &str); 3] = [
    ("inventory", include_str!("../../../examples/src/fulfilment/inventory/schema.sql")),
    ("billing", include_str!("../../../examples/src/fulfilment/billing/schema.sql")),
    ("shipping", include_str!("../../../examples/src/fulfilment/shipping/schema.sql")),
];

struct Site {
    /// The shop's, whose stream all use.
    shop: TestEnv,
    services: Vec<TestEnv>,
    gateway: Program,
    port: u16,
    relays: Vec<Program>,
    participants: Vec<Program>,
}

impl Site {
    async fn start() -> Self {
        let shop = TestEnv::new().await;
        shop.stream().await;
        let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        let address = format!("127.0.0.1:{port}");
        let gateway = Program::start("gateway", &[], &[("GATEWAY_LISTEN", address.clone())]).await.unwrap();
        let (mut services, mut participants) = (Vec::new(), Vec::new());
        let mut relays = vec![relay(&shop, &shop).await];
        for (name, tables) in TABLES {
            let service = TestEnv::new().await;
            service.pg().await.batch_execute(tables).await.unwrap();
            let environment = [
                ("DATABASE_URL", service.database_url().to_owned()),
                ("NATS_URL", shop.nats_url().to_owned()),
                ("STREAM", shop.name().to_owned()),
                ("SUBJECT_PREFIX", shop.subject("")),
                ("GATEWAY", address.clone()),
                ("LEASE_SECONDS", "1".to_owned()),
            ];
            let arguments = [name, "--choreography"];
            participants.push(Program::start("participant", &arguments, &environment).await.unwrap());
            relays.push(relay(&service, &shop).await);
            services.push(service);
        }
        let stock = format!("INSERT INTO stock VALUES ('lamp', {STOCK})");
        services[0].pg().await.batch_execute(&stock).await.unwrap();
        Self { shop, services, gateway, port, relays, participants }
    }

    /// Says an event about an order, as the shop does.
    async fn say(&self, order: &Value, event: &str) {
        let mut client = self.shop.pg().await;
        let transaction = client.transaction().await.unwrap();
        let id = order["id"].as_str().unwrap();
        let key = format!("{id}:{event}").parse().unwrap();
        let message = Message::json(key, self.shop.subject(event).parse().unwrap(), order).unwrap();
        Outbox::default().enqueue(&transaction, &message).await.unwrap();
        transaction.commit().await.unwrap();
    }

    /// How many messages were enqueued, in all outboxes.
    async fn said(&self) -> u64 {
        let mut said = 0;
        for env in self.services.iter().chain([&self.shop]) {
            let sql = "SELECT count(*) FROM oncebox.message";
            said += env.pg().await.query_one(sql, &[]).await.unwrap().get::<_, i64>(0);
        }
        said.unsigned_abs()
    }

    /// Whether all that was said is in the stream, all that is there is handled, and no more was
    /// said meanwhile.
    async fn is_quiet(&self) -> bool {
        let (said, stream) = (self.said().await, self.shop.stream().await);
        if stream.get_info().await.unwrap().state.messages != said {
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
        self.said().await == said
    }

    /// Per order, what a table of a service adds up to; those of nothing left out.
    async fn left(&self, service: usize, table: &str, column: &str) -> Vec<(String, i64)> {
        let sql = format!(
            "SELECT order_id, sum({column})::bigint FROM {table} GROUP BY 1 HAVING sum({column}) <> 0 ORDER BY 1"
        );
        let rows = self.services[service].pg().await.query(&sql, &[]).await.unwrap();
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }
}

async fn relay(env: &TestEnv, shop: &TestEnv) -> Program {
    let environment = [
        ("DATABASE_URL", env.database_url().to_owned()),
        ("NATS_URL", shop.nats_url().to_owned()),
        ("ONCEBOX_HTTP_LISTEN", "off".to_owned()),
    ];
    Program::start("oncebox", &["relay"], &environment).await.unwrap()
}

/// Every sixth is too expensive, every sixth goes where no parcel goes, every sixth is cancelled,
/// some of these before it is placed.
fn order(number: usize) -> Value {
    let cents = if number % 6 == 1 { 2_000_000 } else { 995 };
    let city = if number % 6 == 2 { "Atlantis" } else { "Bremen" };
    json!({"id": format!("order-{number:02}"), "item": "lamp", "count": 1, "cents": cents, "city": city})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_that_react_to_each_other_s_events_end_with_balanced_books() {
    let mut site = Site::start().await;
    for number in 0..ORDERS {
        let order = order(number);
        let cancelled = number % 6 == 3;
        if cancelled && number < ORDERS / 2 {
            site.say(&order, "orders.cancelled").await;
        }
        site.say(&order, "orders.placed").await;
        if cancelled && number >= ORDERS / 2 {
            site.say(&order, "orders.cancelled").await;
        }
        if number % 8 == 7 {
            let victim = &mut site.participants[number / 8];
            victim.kill().await.unwrap();
            victim.restart().await.unwrap();
        }
    }
    eventually("everything that was said is heard", LIMIT, async || site.is_quiet().await.then_some(()))
        .await;

    let sent = site.left(2, "parcel", "count").await;
    let kept = site.left(0, "movement", "count").await;
    assert_eq!(sent, kept, "what is put aside is what was sent");
    let paid: Vec<_> = sent.iter().map(|(order, count)| (order.clone(), count * 995)).collect();
    assert_eq!(site.left(1, "payment", "cents").await, paid, "what was charged is what was sent");
    let ordinary = (0..ORDERS).filter(|number| ![1, 2, 3].contains(&(number % 6))).count();
    assert!(sent.iter().all(|(_, count)| *count == 1), "{sent:?}");
    assert!((1..=ordinary).contains(&sent.len()), "{} of {ordinary}: {sent:?}", sent.len());
    let free: i32 =
        site.services[0].pg().await.query_one("SELECT free FROM stock", &[]).await.unwrap().get(0);
    assert_eq!(free + i32::try_from(sent.len()).unwrap(), STOCK);

    let (status, books) = get(([127, 0, 0, 1], site.port).into(), "/books").await;
    assert_eq!(status, 200, "{books}");
    let books: Value = serde_json::from_str(&books).unwrap();
    let sum = |page: &str| -> i64 {
        books[page].as_object().unwrap().values().map(|line| line["cents"].as_i64().unwrap()).sum()
    };
    let paid: i64 = paid.iter().map(|(_, cents)| cents).sum();
    assert_eq!(sum("charges") - sum("refunds"), paid, "the gateway says the same");
    for program in site.participants.iter_mut().chain(&mut site.relays) {
        program.stop().await.unwrap();
    }
    site.gateway.stop().await.unwrap();
}
