//! Effects outside the database, in each language: the cashiers of the READMEs are killed, and
//! suspended for longer than their leases, while the gateway refuses, loses answers and hangs, and
//! every message is published three times. Each order is charged, paid out and booked once. And
//! each answer of the database and of a provider has its end.

use std::{net::TcpListener, path::Path, time::Duration};

use async_nats::HeaderMap;
use oncebox_tests::{Program, TestEnv, is_settled, program_file};
use serde_json::{Value, json};
use tokio::{
    process::Command,
    time::{sleep, timeout},
};

use super::shop::{Programs, Shop, lines};
use crate::relay::process::get;

/// Defines the test of each client.
macro_rules! clients {
    ($($client:ident: $cashier:ident),*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $client() {
            if let Some(programs) = Programs::of(stringify!($client)) {
                let file = programs.file(stringify!($cashier));
                pay_once(&Shop::new(programs).await, &file).await;
            }
        }
    )*};
}
clients!(python: cashier, typescript: cashier, go: paying, java: cashier);

/// The handler works over sqlx between its effects; the claims are over tokio-postgres.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rust_over_sqlx() {
    let file = program_file("cashier_sqlx").unwrap();
    let shop = Shop::new(Programs::built(&file)).await;
    let client = shop.env.pg().await;
    let visits = "CREATE TABLE visit (order_id bigint PRIMARY KEY, runs bigint, ends bigint)";
    client.batch_execute(visits).await.unwrap();
    pay_once(&shop, &file).await;
    let seen = "SELECT concat_ws(' ', count(*), bool_and(ends >= 1), sum(runs) > sum(ends)) FROM visit";
    assert_eq!(lines(&client, seen).await, ["60 t t"], "runs died between the statements of sqlx");
}

const LIMIT: Duration = Duration::from_secs(240);
const ORDERS: u64 = 60;
const KILLS: usize = 46;
/// The numbers of orders that are too expensive: the gateway declines them.
const DECLINED: [u64; 2] = [13, 31];

async fn pay_once(shop: &Shop, cashier: &Path) {
    let client = shop.env.pg().await;
    client.batch_execute(include_str!("../../../examples/src/cashier/schema.sql")).await.unwrap();
    let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let mut gateway = Program::start("gateway", &[], &[("GATEWAY_LISTEN", address.clone())]).await.unwrap();
    let environment = [
        ("DATABASE_URL", shop.env.database_url().to_owned()),
        ("NATS_URL", shop.nats.url()),
        ("STREAM", "ORDERS".to_owned()),
        ("SUBJECT_PREFIX", String::new()),
        ("GATEWAY", address),
        ("LEASE_SECONDS", "1".to_owned()),
    ];
    let mut cashiers = Vec::new();
    for _ in 0..3 {
        let cashier = Program::start_file(cashier, &[], &environment).await;
        cashiers.push(cashier.unwrap());
    }
    publish(shop).await;
    timeout(LIMIT, trouble(shop, &mut cashiers)).await.expect("everything is settled in time");

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
    let booked = "SELECT order_id::text FROM settlement AS s ORDER BY s.order_id";
    let expected: Vec<String> = paid.iter().map(u64::to_string).collect();
    assert_eq!(lines(&client, booked).await, expected, "each order is booked once");
    let ended = "SELECT status || ' ' || count(*) FROM oncebox.inbox GROUP BY status ORDER BY status";
    assert_eq!(lines(&client, ended).await, ["completed 58", "rejected 2"]);
    let left = "SELECT key FROM oncebox.inbox_claim UNION ALL SELECT key FROM oncebox.inbox_effect
                UNION ALL SELECT key FROM oncebox.dead_letter";
    assert_eq!(lines(&client, left).await, [""; 0]);
    // One may have begun a moment ago, and hear no signal yet.
    for cashier in &mut cashiers {
        let is_blamed = cashier.log().contains("may this user publish to $JS.ACK.>?");
        assert!(!is_blamed, "a copy that waits for the end of a lease comes again, and nothing is wrong");
        cashier.kill().await.unwrap();
    }
    gateway.stop().await.unwrap();
}

/// Publishes every order three times, all in random order.
async fn publish(shop: &Shop) {
    let mut numbers: Vec<u64> = (0..3).flat_map(|_| 0..ORDERS).collect();
    fastrand::shuffle(&mut numbers);
    for number in numbers {
        let cents = if DECLINED.contains(&number) { 2_000_000 } else { 995 };
        let payload = json!({ "order": number, "customer": 1, "number": number, "cents": cents }).to_string();
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

/// For each message the calls of its provider, the questions, the rows of its last writes, the
/// effects that are remembered, and how its runs ended.
const GO: &str = r#"begun: 1 calls, 0 asks, 1 rows, 0 effects: handled "receipt of begun:pay" | replayed "receipt of begun:pay"
done: 1 calls, 0 asks, 1 rows, 0 effects: retry as it was told | handled "receipt of done:pay"
rejected: 1 calls, 0 asks, 0 rows, 1 effects: dead effect "pay" was rejected: card declined
remembered: 1 calls, 0 asks, 0 rows, 1 effects: retry as it was told | dead effect "pay" was rejected: card declined
happened: 1 calls, 1 asks, 1 rows, 0 effects: retry the outcome of effect "pay" is unknown: connection reset | handled "found happened:pay"
early: 1 calls, 1 asks, 0 rows, 1 effects: retry the outcome of effect "pay" is unknown: connection reset | retry the outcome of effect "pay" is unknown: the provider knows nothing of it, but a call settles within 1m0s
early: 1 calls, 1 asks, 1 rows, 0 effects: handled "receipt of early:pay"
unknown: 1 calls, 2 asks, 0 rows, 1 effects: retry the outcome of effect "pay" is unknown: connection reset | retry the outcome of effect "pay" is unknown: the provider cannot tell yet | dead delivery limit of 3 reached: the outcome of effect "pay" is unknown: the provider cannot tell yet
no-answer: 1 calls, 1 asks, 0 rows, 1 effects: retry the outcome of effect "pay" is unknown: connection reset | retry the outcome of effect "pay" is unknown: out of order
never: 1 calls, 1 asks, 0 rows, 1 effects: retry the outcome of effect "pay" is unknown: connection reset | dead effect "pay" was rejected: unknown card
not-sent: 1 calls, 0 asks, 0 rows, 0 effects: retry effect "pay" failed: connection refused
not-sent: 1 calls, 0 asks, 1 rows, 0 effects: handled "receipt of not-sent:pay"
idempotent: 3 calls, 0 asks, 1 rows, 0 effects: retry the outcome of effect "pay" is unknown: connection reset | retry the outcome of effect "pay" is unknown: connection refused | handled "receipt of idempotent:pay"
own: 1 calls, 0 asks, 1 rows, 0 effects: handled "receipt of own:pay"
unsaid: 0 calls, 0 asks, 0 rows, 0 effects: retry effect "pay": it needs Call, and either Reconcile or IsProviderIdempotent
twice: 1 calls, 0 asks, 0 rows, 1 effects: retry effect "pay": it was done already, or is under way: each effect of a run needs a step of its own
swallowed: 1 calls, 1 asks, 1 rows, 0 effects: retry the handler went on after an effect; the outcome of effect "pay" is unknown | handled "done"
panics: 0 calls, 1 asks, 1 rows, 0 effects: retry the outcome of effect "pay" is unknown: the handler panicked: as it was told | handled "found panics:pay"
snoozed: 0 calls, 0 asks, 0 rows, 0 effects: retry snoozed: the ledger is closed | dead snoozed for too long, 24h0m0s: snoozed: the ledger is closed
lost: 0 calls, 0 asks, 0 rows, 0 effects: in_flight
fenced: 1 calls, 0 asks, 0 rows, 1 effects: in_flight
conflict: 1 calls, 0 asks, 1 rows, 0 effects: handled "receipt of conflict:pay"
commits: 1 calls, 0 asks, 0 rows, 1 effects: dead the handler sent COMMIT by itself, which stays, and then failed: the handler ended the transaction by itself
mismatch: 0 calls, 0 asks, 0 rows, 0 effects: mismatch the key was used before with another payload
owner: handled
owner: in_flight
suspended: 2 calls, 1 rows
"#;

#[tokio::test]
async fn each_answer_has_its_end_in_go_and_a_suspended_owner_calls_and_writes_nothing() {
    let Some(programs) = Programs::of("go") else { return };
    let env = TestEnv::new().await;
    let mut program = Command::new(programs.file("effects"));
    program.env("DATABASE_URL", env.database_url()).kill_on_drop(true);
    let output = timeout(LIMIT, program.output()).await.expect("the program ends").unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), GO, "{}", String::from_utf8_lossy(&output.stderr));
}
