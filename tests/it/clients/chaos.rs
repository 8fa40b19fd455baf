//! Consumers of the clients' READMEs through kills, cuts at COMMIT and copies: each effect once.

use std::time::Duration;

use async_nats::jetstream::consumer::pull;
use oncebox_schema::{Lanes, SchemaName, migrate};
use oncebox_tests::{Postgres, Program, Stop, eventually};
use tokio_postgres::{Client, NoTls};

use super::shop::{LIMIT, Programs, Shop, lines};
use crate::relay::support::through_proxy;

const ORDERS: i64 = 48;
/// How many orders lie between two kills.
const TURN: i64 = 12;
/// The messages of a killed process come again after this.
const ACK_WAIT: Duration = Duration::from_secs(2);

/// Three copies of the README's consumer, killed at random, cut off before and after a COMMIT, with
/// two copies of each message: each effect once.
pub(super) async fn kill_and_cut_off(programs: Programs) {
    let shop = Shop::new(programs).await;
    let (proxy, url) = through_proxy(shop.env.database_url()).await;
    let config = pull::Config {
        durable_name: Some("payment".to_owned()),
        filter_subject: "orders.placed".to_owned(),
        ack_wait: ACK_WAIT,
        ..Default::default()
    };
    shop.stream.create_consumer(config).await.unwrap();
    let client = shop.env.pg().await;
    let now = "SELECT clock_timestamp()::text";
    let names = ["first", "second", "third"];
    let mut copies = Vec::new();
    let started = lines(&client, now).await.remove(0);
    for name in names {
        copies.push(shop.payment(&url, name).await);
    }
    for name in names {
        shop.has_begun(name, &started).await;
    }
    for n in 0..ORDERS {
        let (order, key) = (n.to_string(), format!("order-{n}:charge"));
        let turn = usize::try_from(n / TURN).unwrap();
        let is_kill = n % TURN == TURN / 2;
        if is_kill {
            proxy.cut_when_client_sends(shop.programs.commit(), turn.is_multiple_of(2));
        }
        for _ in 0..2 {
            shop.publish(&order, 1 + n, Some(&key)).await;
        }
        if is_kill {
            eventually("one is cut off", LIMIT, async || (!proxy.is_armed()).then_some(())).await;
            let charged = format!("SELECT id FROM charge WHERE id = '{order}'");
            eventually("they go on", LIMIT, async || lines(&client, &charged).await.pop()).await;
            let copy = &mut copies[turn % 3];
            copy.kill().await.unwrap();
            let started = lines(&client, now).await.remove(0);
            copy.restart().await.unwrap();
            shop.has_begun(names[turn % 3], &started).await;
        }
    }
    // The messages of a killed copy come again later, and an order's key is about to be used once
    // more.
    let charged = format!("SELECT 'all' FROM charge HAVING count(*) = {ORDERS}");
    eventually("all are charged", LIMIT, async || lines(&client, &charged).await.pop()).await;
    shop.publish("free", 0, Some("free")).await;
    shop.publish("negative", -1, Some("negative")).await;
    shop.publish("reused", 5, Some("order-1:charge")).await;
    shop.publish("keyless", 5, None).await;
    shop.publish_bytes("no JSON".to_owned(), Some("poison")).await;
    shop.settled().await;
    for copy in &mut copies {
        copy.stop().await.unwrap();
    }
    assert_each_effect_once(&client).await;
}

/// The time for which both servers are away, one after the other.
const AWAY: Duration = Duration::from_secs(8);
/// The connections that a consumer tries in that time at most: a pool of four and a listener, each
/// about twice a second.
const TRIES_MAX: u64 = 80;

/// A server that is away is not stormed with connections, least of all by messages that come again.
pub(super) async fn lose_the_servers(programs: Programs) {
    let shop = Shop::new(programs).await;
    let (postgres, database_url) = through_proxy(shop.env.database_url()).await;
    let (nats, nats_url) = through_proxy(&shop.nats.url()).await;
    let environment = [("DATABASE_URL", database_url), ("NATS_URL", nats_url)];
    let file = shop.programs.file("payment");
    let mut payment = Program::start_file(&file, &[], &environment).await.unwrap();
    let client = shop.env.pg().await;
    let charge = async |order: &str| {
        shop.publish(order, 1, Some(order)).await;
        let charged = format!("SELECT id FROM charge WHERE id = '{order}'");
        eventually("it is charged", LIMIT, async || lines(&client, &charged).await.pop()).await;
    };
    charge("before").await;
    for (name, proxy) in [("postgres", &postgres), ("nats", &nats)] {
        proxy.refuse(true);
        proxy.cut();
        for n in 0..20 {
            shop.publish(&format!("{name}-{n}"), 1, Some(&format!("{name}-{n}"))).await;
        }
        let before = proxy.connections();
        tokio::time::sleep(AWAY).await;
        let tries = proxy.connections() - before;
        assert!((1..=TRIES_MAX).contains(&tries), "{name}: {tries} in {AWAY:?}");
        payment.check().unwrap();
        proxy.refuse(false);
        charge(&format!("{name}-is-back")).await;
    }
    let all = "SELECT 'all' FROM charge HAVING count(*) = 43 AND count(DISTINCT id) = 43";
    eventually("all are charged once", LIMIT, async || lines(&client, all).await.pop()).await;
    payment.stop().await.unwrap();
}

/// PostgreSQL crashes while a handler runs, and forgets the id of its transaction, which another
/// one gets and commits. The message is no worse for that.
pub(super) async fn crash_behind_a_claim(programs: Programs) {
    let shop = Shop::new(programs).await;
    let mut postgres = Postgres::start().await.unwrap();
    let (proxy, url) = through_proxy(&postgres.url("postgres")).await;
    let mut client = connected(&shop, &postgres).await;
    // Uncommitted data is not written either.
    let setting = "ALTER SYSTEM SET wal_writer_delay = '10s'; SELECT pg_reload_conf()";
    for sql in setting.split("; ").chain(TABLES.split("; ")) {
        client.batch_execute(sql).await.unwrap();
    }
    migrate(&mut client, &SchemaName::default(), Lanes::default()).await.unwrap();
    let mut payment = shop.payment(&url, "payment").await;
    shop.publish("first", 1, Some("first")).await;
    let charged = |order: &str| format!("SELECT id FROM charge WHERE id = '{order}'");
    eventually("it consumes", LIMIT, async || lines(&client, &charged("first")).await.pop()).await;
    let locking = connected(&shop, &postgres).await;
    locking.batch_execute("BEGIN; LOCK TABLE charge").await.unwrap();
    shop.publish("second", 1, Some("second")).await;
    let waiting = "SELECT w.backend_xid::text FROM pg_stat_activity AS w
                   WHERE w.datname = current_database() AND w.wait_event_type = 'Lock' AND w.backend_xid IS NOT NULL AND w.query ~ 'charge'";
    let xid: i64 = eventually("the handler runs", LIMIT, async || lines(&client, waiting).await.pop())
        .await
        .parse()
        .unwrap();
    // The consumer learns of the crash when all is over, and asks at once.
    proxy.stall(true);
    postgres.restart(Stop::Kill).await.unwrap();
    let client = connected(&shop, &postgres).await;
    let next = || async {
        lines(&client, "SELECT pg_current_xact_id()::text").await.remove(0).parse::<i64>().unwrap()
    };
    assert!(next().await <= xid, "the id is forgotten");
    while next().await <= xid {}
    proxy.stall(false);
    eventually("it is charged", LIMIT, async || lines(&client, &charged("second")).await.pop()).await;
    let ended =
        "SELECT concat_ws(' ', (SELECT count(*) FROM charge), (SELECT count(*) FROM oncebox.dead_letter))";
    assert_eq!(lines(&client, ended).await, ["2 0"]);
    payment.stop().await.unwrap();
}

const TABLES: &str = "CREATE TABLE orders (id text PRIMARY KEY, cents bigint NOT NULL); \
                      CREATE TABLE charge (id text NOT NULL, cents bigint NOT NULL)";

async fn connected(shop: &Shop, postgres: &Postgres) -> Client {
    let (client, connection) = tokio_postgres::connect(&postgres.url("postgres"), NoTls).await.unwrap();
    shop.env.keep(async move { drop(connection.await) });
    client
}

async fn assert_each_effect_once(client: &Client) {
    let wrong = "SELECT id || ' ' || count(*) FROM charge GROUP BY id HAVING count(*) <> 1";
    assert_eq!(lines(client, wrong).await, [""; 0]);
    let sums = "SELECT count(*) || ' ' || sum(cents) FROM charge";
    assert_eq!(lines(client, sums).await, [format!("{ORDERS} {}", ORDERS * (ORDERS + 1) / 2)]);
    assert_eq!(lines(client, "SELECT count(*)::text FROM oncebox.message").await, [ORDERS.to_string()]);
    let letters = "SELECT coalesce(key, '-') || ': ' || regexp_replace(reason, 'decode: .+', 'decode')
                   FROM oncebox.dead_letter ORDER BY key NULLS LAST";
    let expected = [
        "negative: a negative price",
        "order-1:charge: the key was used before with another payload",
        "poison: the payload does not decode",
        "-: no key: none of the headers Idempotency-Key, x-idempotency-key is present",
    ];
    assert_eq!(lines(client, letters).await, expected);
    let rejected =
        "SELECT key || ' ' || convert_from(outcome, 'UTF8') FROM oncebox.inbox WHERE status = 'rejected'";
    assert_eq!(lines(client, rejected).await, ["free \"nothing to charge\""]);
}
