//! The clients in other languages: the programs of their READMEs as somebody would paste them, on
//! real servers. `tests/clients/prepare.sh` has made each a folder with the same programs.

use std::{
    env, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use async_nats::{
    HeaderMap,
    jetstream::{self, consumer::pull, stream::Stream},
};
use oncebox_tests::{Nats, Program, TestEnv, eventually};
use tokio::{process::Command, time::timeout};
use tokio_postgres::Client;

use crate::relay::support::{Running, through_proxy, values, with};

const LIMIT: Duration = Duration::from_secs(90);
const ORDERS: i64 = 48;
/// How many orders lie between two kills.
const TURN: i64 = 12;
/// What a process that was killed had in its hands comes again after this.
const ACK_WAIT: Duration = Duration::from_secs(2);

/// Defines the tests of each client.
macro_rules! clients {
    ($($client:ident),*) => {$(
        mod $client {
            use super::Programs;

            #[tokio::test]
            async fn keys_are_judged_and_derived_as_the_vectors_say() {
                if let Some(programs) = Programs::of(stringify!($client)) {
                    super::judge_and_derive_keys(programs).await;
                }
            }

            #[tokio::test]
            async fn an_order_of_the_readme_is_charged_once_and_the_consumer_drains() {
                if let Some(programs) = Programs::of(stringify!($client)) {
                    super::charge_an_order(programs).await;
                }
            }

            #[tokio::test]
            async fn a_handler_that_hides_an_error_or_rolls_back_is_not_taken_for_done() {
                if let Some(programs) = Programs::of(stringify!($client)) {
                    super::hide_an_error(programs).await;
                }
            }

            #[tokio::test]
            async fn a_nats_client_that_is_closed_for_good_ends_the_consumer_with_an_error() {
                if let Some(programs) = Programs::of(stringify!($client)) {
                    super::close_the_client(programs).await;
                }
            }

            #[tokio::test]
            async fn killed_and_cut_off_at_commit_each_order_is_charged_once() {
                if let Some(programs) = Programs::of(stringify!($client)) {
                    super::kill_and_cut_off(programs).await;
                }
            }
        }
    )*};
}
clients!(python, typescript, go);

/// Not of Go, whose limit is a constant of half a minute.
macro_rules! limited {
    ($($client:ident: $silent:ident, $draining:ident;)*) => {$(
        #[tokio::test]
        async fn $silent() {
            if let Some(programs) = Programs::of(stringify!($client)) {
                fall_silent(programs).await;
            }
        }

        #[tokio::test]
        async fn $draining() {
            if let Some(programs) = Programs::of(stringify!($client)) {
                drain_without_end(programs).await;
            }
        }
    )*};
}
limited! {
    python: no_step_of_python_waits_for_ever, no_drain_of_python_waits_for_ever;
    typescript: no_step_of_typescript_waits_for_ever, no_drain_of_typescript_waits_for_ever;
}

/// The folder with a client's programs.
struct Programs(PathBuf);

impl Programs {
    /// `None` where there is no toolchain for this client.
    fn of(client: &str) -> Option<Self> {
        let folder = repository().join(".dev/clients").join(client);
        assert!(folder.is_dir(), "{} is not there: run `make .dev/clients/{client}`", folder.display());
        let Ok(reason) = fs::read_to_string(folder.join("LEFT_OUT")) else { return Some(Self(folder)) };
        let is_required = env::var_os("ONCEBOX_TEST_CLIENTS").is_some_and(|value| value == "required");
        assert!(!is_required, "{reason}");
        eprint!("{reason}");
        None
    }

    fn file(&self, program: &str) -> PathBuf {
        self.0.join(program)
    }

    /// What a consumer sends to commit, and not in READ COMMITTED; of pgx the name that it prepares
    /// COMMIT under, a hash of the text, behind the empty name of a portal.
    fn commit(&self) -> &'static [u8] {
        if self.0.ends_with("go") { b"\0stmtcache_79663c1d3b43ceaf" } else { b"COMMIT\0" }
    }
}

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Everything that the programs of the README need, and the programs.
struct Shop {
    env: TestEnv,
    nats: Nats,
    jetstream: jetstream::Context,
    stream: Stream,
    programs: Programs,
}

impl Shop {
    async fn new(programs: Programs) -> Self {
        let (env, nats) = (TestEnv::new().await, Nats::start().await.unwrap());
        let tables = "CREATE TABLE orders (id text PRIMARY KEY, cents bigint NOT NULL);
                      CREATE TABLE charge (id text NOT NULL, cents bigint NOT NULL)";
        env.pg().await.batch_execute(tables).await.unwrap();
        let jetstream = jetstream::new(async_nats::connect(nats.url()).await.unwrap());
        let config = jetstream::stream::Config {
            name: "ORDERS".to_owned(),
            subjects: vec!["orders.>".to_owned(), "payments.>".to_owned()],
            ..Default::default()
        };
        let stream = jetstream.create_stream(config).await.unwrap();
        Self { env, nats, jetstream, stream, programs }
    }

    /// The README's consumer, as a process of its own whose connections have this name.
    async fn payment(&self, database_url: &str, name: &str) -> Program {
        let separator = if database_url.contains('?') { '&' } else { '?' };
        let database_url = format!("{database_url}{separator}application_name={name}");
        let environment = [("DATABASE_URL", database_url), ("NATS_URL", self.nats.url())];
        Program::start_file(&self.programs.file("payment"), &[], &environment).await.unwrap()
    }

    /// The consumer of this name has begun, after it was started at this time, when it has registered,
    /// which may have been the last that it sent, or claims. Before that, it would end at once when
    /// it is told to end. Tests beside this one run consumers of the same names.
    async fn has_begun(&self, name: &str, started: &str) {
        let client = self.env.pg().await;
        let sql = format!(
            "SELECT query FROM pg_stat_activity
             WHERE datname = current_database() AND application_name = '{name}'
               AND backend_start >= '{started}' AND query ~* 'register|claim|oncebox|commit'"
        );
        eventually("the consumer has begun", LIMIT, async || lines(&client, &sql).await.pop()).await;
    }

    async fn publish(&self, order: &str, cents: i64, key: Option<&str>) {
        self.publish_bytes(format!(r#"{{"order":"{order}","cents":{cents}}}"#), key).await;
    }

    async fn publish_bytes(&self, payload: String, key: Option<&str>) {
        let mut headers = HeaderMap::new();
        if let Some(key) = key {
            headers.insert("Idempotency-Key", key);
        }
        let publish = self.jetstream.publish_with_headers("orders.placed", headers, payload.into());
        publish.await.unwrap().await.unwrap();
    }

    /// Everything that was published is acknowledged, or given up.
    async fn settled(&self) {
        eventually("the consumer is done", LIMIT, async || {
            let info = self.stream.consumer_info("payment").await.ok()?;
            (info.num_pending == 0 && info.num_ack_pending == 0).then_some(())
        })
        .await;
    }
}

async fn lines(client: &Client, sql: &str) -> Vec<String> {
    client.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

async fn judge_and_derive_keys(programs: Programs) {
    let vectors = repository().join("schema/vectors/keys.tsv");
    let output = Command::new(programs.file("keys")).env("VECTORS", vectors).output().await.unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
}

/// PostgreSQL answers the COMMIT of a transaction that an error aborted with ROLLBACK, and one that
/// comes after the handler's own ROLLBACK with a warning: neither is an error.
async fn hide_an_error(programs: Programs) {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let table = "CREATE TABLE charge (id text NOT NULL, cents bigint NOT NULL)";
    client.batch_execute(table).await.unwrap();
    let mut spoiled = Command::new(programs.file("spoiled"));
    let output = spoiled.env("DATABASE_URL", env.database_url()).output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let dead = "silent dead\nreplying dead\nsilent-rollback dead\nreplying-rollback dead\n";
    assert_eq!(String::from_utf8_lossy(&output.stdout), dead, "{said}");
    assert_eq!(lines(&client, "SELECT id FROM charge").await, [""; 0]);
    let kept = "SELECT key || ' ' || status FROM oncebox.inbox WHERE status <> 'dead'";
    assert_eq!(lines(&client, kept).await, [""; 0]);
    let letters =
        "SELECT key || ' ' || (reason ~ '^delivery limit of 1 reached: .*(abort|ended|not claimed)')
                   FROM oncebox.dead_letter ORDER BY key";
    let expected = ["replying true", "replying-rollback true", "silent true", "silent-rollback true"];
    assert_eq!(lines(&client, letters).await, expected);
}

/// A client that has given up its reconnects never comes back: only a new process can consume.
async fn close_the_client(programs: Programs) {
    let env = TestEnv::new().await;
    env.stream().await;
    let mut closed = Command::new(programs.file("closed"));
    closed.env("DATABASE_URL", env.database_url()).env("NATS_URL", env.nats_url());
    closed.env("STREAM", env.name()).env("SUBJECT", env.subject("a")).kill_on_drop(true);
    let output = timeout(LIMIT, closed.output()).await.expect("the program ends").unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let ends: Vec<&str> = said.lines().collect();
    assert_eq!(ends.len(), 2, "{said}{}", String::from_utf8_lossy(&output.stderr));
    for (end, when) in ends.into_iter().zip(["at work: ", "at start: "]) {
        assert!(end.starts_with(when) && end.to_lowercase().contains("closed"), "{said}");
    }
}

/// A handler that goes on after the grace of a drain is an error, and not a success.
async fn drain_without_end(programs: Programs) {
    let env = TestEnv::new().await;
    env.stream().await;
    let mut draining = Command::new(programs.file("draining"));
    draining.env("DATABASE_URL", env.database_url()).env("NATS_URL", env.nats_url());
    draining.env("STREAM", env.name()).env("SUBJECT", env.subject("a")).kill_on_drop(true);
    let output = timeout(LIMIT, draining.output()).await.expect("the drain ends").unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(said.starts_with("consumer draining: handlers go on"), "{said}{errors}");
}

/// In a network that swallows packets, no step around a handler waits until TCP gives up. The pool
/// has one connection, so the runs after that show that its place is free again.
async fn fall_silent(programs: Programs) {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let table = "CREATE TABLE charge (id text NOT NULL, cents bigint NOT NULL)";
    client.batch_execute(table).await.unwrap();
    let (proxy, url) = through_proxy(env.database_url()).await;
    let steps: [(&str, &[u8], &str); 7] = [
        ("connect", b"user\0", "silent new"),
        ("register", b".register_scope(", "silent registered"),
        ("claim", b".claim(", "retry new"),
        ("commit", b"COMMIT\0", "retry new"),
        ("failing-back", b"ROLLBACK", "retry new"),
        ("failing", b".attempt_failed(", "silent new"),
        ("poison", b".bury(", "silent dead"),
    ];
    for (what, needle, expected) in steps {
        proxy.lose_when_client_sends(needle);
        let mut silent = Command::new(programs.file("silent"));
        silent.arg(what).env("DATABASE_URL", &url).kill_on_drop(true);
        let step = String::from_utf8_lossy(needle);
        let output =
            timeout(LIMIT, silent.output()).await.unwrap_or_else(|_| panic!("{what} waits at {step}"));
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(said.lines().last(), Some(expected), "{what}, {step}: {said}{errors}");
        assert!(!proxy.is_armed(), "{what} sends {step}");
    }
    let charged = lines(&client, "SELECT id FROM charge ORDER BY id").await;
    assert_eq!(charged, ["claim", "commit", "connect", "failing", "failing-back"]);
}

/// From the README's producer through a relay to its consumer, which ends when it is asked to.
async fn charge_an_order(programs: Programs) {
    let shop = Shop::new(programs).await;
    for expected in [true, false] {
        let mut order = Command::new(shop.programs.file("order"));
        order.args(["4711", "1999"]);
        let placed = order.env("DATABASE_URL", shop.env.database_url()).output().await.unwrap();
        let said = String::from_utf8_lossy(&placed.stderr);
        assert_eq!(placed.status.success(), expected, "the table of orders knows it by then: {said}");
    }
    let relay = Running::start(&with(&values(shop.env.database_url(), &shop.nats.url()), []));
    let mut payment = shop.payment(shop.env.database_url(), "payment").await;
    let client = shop.env.pg().await;
    eventually("the order is charged", LIMIT, async || {
        (!lines(&client, "SELECT id FROM charge").await.is_empty()).then_some(())
    })
    .await;
    shop.publish("4711", 1999, Some("order-4711:charge")).await;
    shop.settled().await;
    payment.stop().await.unwrap();
    relay.stop().await;
    assert_eq!(lines(&client, "SELECT id || ' ' || cents FROM charge").await, ["4711 1999"]);
    let sql = "SELECT key || ' ' || subject || ' ' || convert_from(payload, 'UTF8') FROM oncebox.message ORDER BY id";
    let sent = [
        r#"order-4711:charge orders.placed {"order":"4711","cents":1999}"#,
        r#"order-4711:charge:receipt payments.made {"order":"4711"}"#,
    ];
    assert_eq!(lines(&client, sql).await, sent);
    let kept =
        "SELECT scope || ' ' || status || ' ' || convert_from(outcome, 'UTF8')::jsonb FROM oncebox.inbox";
    assert_eq!(lines(&client, kept).await, ["payment-service:charge completed {\"charged\": 1999}"]);
}

/// Three copies of the README's consumer, killed at random, cut off before and behind a COMMIT,
/// with two copies of each message: each effect once.
async fn kill_and_cut_off(programs: Programs) {
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
    // What a killed copy held comes again later, and an order's key is about to be used once more.
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
