//! The order's flow as real processes: a shop, an inventory, billing, shipping, each with a
//! database and a relay, one nats-server, and a gateway that loses answers.

use std::{net::TcpListener, time::Duration};

use async_nats::jetstream::{self, stream::Stream};
use oncebox_tests::{Nats, Program, TestEnv};
use serde_json::{Value, json};

use crate::relay::{process::get, support::fresh_stream, support::stream_config};

/// The number of lamps; each order takes one.
pub(crate) const STOCK: i32 = 18;
const PRICE: i64 = 995;
const STREAM: &str = "SITE";
const PREFIX: &str = "site.";
const TABLES: [(&str, &str); 3] = [
    ("inventory", include_str!("../../../examples/src/fulfilment/inventory/schema.sql")),
    ("billing", include_str!("../../../examples/src/fulfilment/billing/schema.sql")),
    ("shipping", include_str!("../../../examples/src/fulfilment/shipping/schema.sql")),
];

pub(crate) struct Site {
    pub(crate) shop: TestEnv,
    /// Inventory, billing, shipping.
    pub(crate) services: Vec<TestEnv>,
    pub(crate) nats: Nats,
    pub(crate) relays: Vec<Program>,
    pub(crate) participants: Vec<Program>,
    gateway: Program,
    port: u16,
}

/// An address that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

impl Site {
    /// The services with these arguments besides their names.
    pub(crate) async fn start(arguments: &[&str]) -> Self {
        let (shop, nats) = (TestEnv::new().await, Nats::start().await.unwrap());
        fresh_stream(&nats.url(), stream_config(STREAM, &format!("{PREFIX}>"))).await;
        let port = free_port();
        let address = format!("127.0.0.1:{port}");
        let gateway = Program::start("gateway", &[], &[("GATEWAY_LISTEN", address.clone())]).await.unwrap();
        let mut site = Self {
            relays: vec![relay(&shop, &nats).await],
            shop,
            services: Vec::new(),
            nats,
            participants: Vec::new(),
            gateway,
            port,
        };
        for (name, tables) in TABLES {
            let service = TestEnv::new().await;
            service.pg().await.batch_execute(tables).await.unwrap();
            let mut environment = site.environment(&service);
            environment.extend([("GATEWAY", address.clone()), ("LEASE_SECONDS", "1".to_owned())]);
            let arguments = [&[name], arguments].concat();
            site.participants.push(Program::start("participant", &arguments, &environment).await.unwrap());
            site.relays.push(relay(&service, &site.nats).await);
            site.services.push(service);
        }
        let stock = format!("INSERT INTO stock VALUES ('lamp', {STOCK})");
        site.services[0].pg().await.batch_execute(&stock).await.unwrap();
        site
    }

    /// The arguments of a service of the flow.
    pub(crate) fn environment(&self, service: &TestEnv) -> Vec<(&'static str, String)> {
        vec![
            ("DATABASE_URL", service.database_url().to_owned()),
            ("NATS_URL", self.nats.url()),
            ("STREAM", STREAM.to_owned()),
            ("SUBJECT_PREFIX", PREFIX.to_owned()),
        ]
    }

    pub(crate) fn subject(tail: &str) -> String {
        format!("{PREFIX}{tail}")
    }

    pub(crate) async fn stream(&self) -> Stream {
        let client = async_nats::connect(self.nats.url()).await.unwrap();
        jetstream::new(client).get_stream(STREAM).await.unwrap()
    }

    /// Per order, the sum of a table of a service; without sums of nothing.
    async fn left(&self, service: usize, table: &str, column: &str) -> Vec<(String, i64)> {
        let sql = format!(
            "SELECT order_id, sum({column})::bigint FROM {table} GROUP BY 1 HAVING sum({column}) <> 0 ORDER BY 1"
        );
        let rows = self.services[service].pg().await.query(&sql, &[]).await.unwrap();
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    /// Demands that the books of all agree, the gateway's too; returns the orders that were sent.
    pub(crate) async fn balance(&self) -> Vec<String> {
        let sent = self.left(2, "parcel", "count").await;
        assert!(sent.iter().all(|(_, count)| *count == 1), "{sent:?}");
        assert_eq!(self.left(0, "movement", "count").await, sent, "what is put aside is what was sent");
        let paid: Vec<_> = sent.iter().map(|(order, _)| (order.clone(), PRICE)).collect();
        assert_eq!(self.left(1, "payment", "cents").await, paid, "what was charged is what was sent");
        let free = self.services[0].pg().await.query_one("SELECT free FROM stock", &[]).await.unwrap();
        assert_eq!(free.get::<_, i32>(0) + i32::try_from(sent.len()).unwrap(), STOCK);

        let (status, books) = get(([127, 0, 0, 1], self.port).into(), "/books").await;
        assert_eq!(status, 200, "{books}");
        let books: Value = serde_json::from_str(&books).unwrap();
        let sum = |page: &str| -> i64 {
            books[page].as_object().unwrap().values().map(|line| line["cents"].as_i64().unwrap()).sum()
        };
        let paid = PRICE * i64::try_from(sent.len()).unwrap();
        assert_eq!(sum("charges") - sum("refunds"), paid, "the gateway says the same");
        sent.into_iter().map(|(order, _)| order).collect()
    }

    pub(crate) async fn stop(mut self) {
        for program in self.participants.iter_mut().chain(&mut self.relays) {
            program.stop().await.unwrap();
        }
        self.gateway.stop().await.unwrap();
    }
}

async fn relay(env: &TestEnv, nats: &Nats) -> Program {
    let environment = [
        ("DATABASE_URL", env.database_url().to_owned()),
        ("NATS_URL", nats.url()),
        ("ONCEBOX_HTTP_LISTEN", "off".to_owned()),
    ];
    Program::start("oncebox", &["relay"], &environment).await.unwrap()
}

/// Kills a process, and starts it again at once.
pub(crate) async fn kill(program: &mut Program) {
    supervise(program).await;
    program.kill().await.unwrap();
    program.restart().await.unwrap();
}

/// Starts a process again that has ended by itself, as a supervisor would: it may, when NATS goes
/// away while it starts.
pub(crate) async fn supervise(program: &mut Program) {
    if program.check().is_err() {
        program.restart().await.unwrap();
    }
}

/// Every sixth is too expensive, every sixth goes where no parcel goes.
pub(crate) fn order(number: usize) -> Value {
    let cents = if number % 6 == 1 { 2_000_000 } else { PRICE };
    let city = if number % 6 == 2 { "Atlantis" } else { "Bremen" };
    json!({"id": format!("order-{number:02}"), "item": "lamp", "count": 1, "cents": cents, "city": city})
}

/// How long all of it may take on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);
