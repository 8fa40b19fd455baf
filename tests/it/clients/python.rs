//! The Python client: the programs of its README as somebody would paste them, on real servers.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use async_nats::{
    HeaderMap,
    jetstream::{self, consumer::pull, stream::Stream},
};
use oncebox_tests::{Nats, Program, Proxy, TestEnv, eventually};
use tokio::process::Command;
use tokio_postgres::Client;

use crate::relay::support::{Running, through_proxy, values, with};

const LIMIT: Duration = Duration::from_secs(90);
const ORDERS: i64 = 80;
/// What a process that was killed had in its hands comes again after this.
const ACK_WAIT: Duration = Duration::from_secs(2);

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn python_path() -> String {
    let packages = repository().join(".dev/python");
    assert!(packages.is_dir(), "nats-py is not installed: run `make .dev/python`");
    format!("{}:{}", packages.display(), repository().join("clients/python").display())
}

/// Everything that the programs of the README need, and the programs.
struct Shop {
    env: TestEnv,
    nats: Nats,
    stream: Stream,
    programs: tempfile::TempDir,
}

impl Shop {
    async fn new() -> Self {
        let (env, nats) = (TestEnv::new().await, Nats::start().await.unwrap());
        let tables = "CREATE TABLE orders (id text PRIMARY KEY, cents bigint NOT NULL);
                      CREATE TABLE charge (id text NOT NULL, cents bigint NOT NULL)";
        env.pg().await.batch_execute(tables).await.unwrap();
        let client = async_nats::connect(nats.url()).await.unwrap();
        let config = jetstream::stream::Config {
            name: "ORDERS".to_owned(),
            subjects: vec!["orders.>".to_owned(), "payments.>".to_owned()],
            ..Default::default()
        };
        let stream = jetstream::new(client).create_stream(config).await.unwrap();
        let programs = tempfile::tempdir().unwrap();
        let readme = fs::read_to_string(repository().join("clients/python/README.md")).unwrap();
        for block in readme.split("```python\n# ").skip(1) {
            let (name, _) = block.split_once(':').unwrap();
            let (program, _) = block.split_once("```").unwrap();
            fs::write(programs.path().join(name), format!("# {program}")).unwrap();
        }
        Self { env, nats, stream, programs }
    }

    fn program(&self, name: &str) -> PathBuf {
        self.programs.path().join(name)
    }

    /// The README's consumer, as a process of its own.
    async fn payment(&self, database_url: &str) -> Program {
        let environment = [
            ("PYTHONPATH", python_path()),
            ("DATABASE_URL", database_url.to_owned()),
            ("NATS_URL", self.nats.url()),
        ];
        let program = self.program("payment.py");
        Program::start_file(&python(), &[program.to_str().unwrap()], &environment).await.unwrap()
    }

    async fn publish(&self, order: &str, cents: i64, key: Option<&str>) {
        let jetstream = jetstream::new(async_nats::connect(self.nats.url()).await.unwrap());
        let mut headers = HeaderMap::new();
        if let Some(key) = key {
            headers.insert("Idempotency-Key", key);
        }
        let payload = format!(r#"{{"order":"{order}","cents":{cents}}}"#);
        jetstream
            .publish_with_headers("orders.placed", headers, payload.into())
            .await
            .unwrap()
            .await
            .unwrap();
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

fn python() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap();
    std::env::split_paths(&path).map(|folder| folder.join("python3")).find(|file| file.is_file()).unwrap()
}

async fn lines(client: &Client, sql: &str) -> Vec<String> {
    client.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn keys_are_judged_and_derived_as_the_vectors_say() {
    let script = repository().join("tests/it/clients/keys.py");
    let vectors = repository().join("schema/vectors/keys.tsv");
    let run = Command::new(python()).arg(script).arg(vectors).env("PYTHONPATH", python_path()).output();
    let output = run.await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// From the README's producer through a relay to its consumer, which ends when it is asked to.
#[tokio::test]
async fn an_order_of_the_readme_is_charged_once_and_the_consumer_drains() {
    let shop = Shop::new().await;
    for expected in [true, false] {
        let mut order = Command::new(python());
        order.arg(shop.program("order.py")).args(["4711", "1999"]).env("PYTHONPATH", python_path());
        let placed = order.env("DATABASE_URL", shop.env.database_url()).output().await.unwrap();
        let said = String::from_utf8_lossy(&placed.stderr);
        assert_eq!(placed.status.success(), expected, "the table of orders knows it by then: {said}");
    }
    let relay = Running::start(&with(&values(shop.env.database_url(), &shop.nats.url()), []));
    let mut payment = shop.payment(shop.env.database_url()).await;
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
    let kept = "SELECT scope || ' ' || status || ' ' || convert_from(outcome, 'UTF8') FROM oncebox.inbox";
    assert_eq!(lines(&client, kept).await, ["payment-service:charge completed {\"charged\": 1999}"]);
}

/// Three copies of the README's consumer, killed at random, cut off before and behind a COMMIT,
/// with two copies of each message: each effect once.
#[tokio::test]
async fn killed_and_cut_off_at_commit_each_order_is_charged_once() {
    let shop = Shop::new().await;
    let (proxy, url): (Proxy, String) = through_proxy(shop.env.database_url()).await;
    let config = pull::Config {
        durable_name: Some("payment".to_owned()),
        filter_subject: "orders.placed".to_owned(),
        ack_wait: ACK_WAIT,
        ..Default::default()
    };
    shop.stream.create_consumer(config).await.unwrap();
    let mut copies = Vec::new();
    for _ in 0..3 {
        copies.push(shop.payment(&url).await);
    }
    let client = shop.env.pg().await;
    let charged = "SELECT count(*)::text FROM charge";
    for n in 0..ORDERS {
        let (order, key) = (n.to_string(), format!("order-{n}:charge"));
        for _ in 0..2 {
            shop.publish(&order, 1 + n, Some(&key)).await;
        }
        if n % 20 == 10 {
            let turn = usize::try_from(n / 20).unwrap();
            proxy.cut_when_client_sends(b"COMMIT", turn.is_multiple_of(2));
            let before = lines(&client, charged).await;
            eventually("they go on", LIMIT, async || (lines(&client, charged).await != before).then_some(()))
                .await;
            let copy = &mut copies[turn % 3];
            copy.kill().await.unwrap();
            copy.restart().await.unwrap();
        }
    }
    shop.publish("free", 0, Some("free")).await;
    shop.publish("negative", -1, Some("negative")).await;
    shop.publish("reused", 5, Some("order-1:charge")).await;
    shop.publish("keyless", 5, None).await;
    shop.settled().await;
    for copy in &mut copies {
        copy.stop().await.unwrap();
    }
    let wrong = "SELECT id || ' ' || count(*) FROM charge GROUP BY id HAVING count(*) <> 1";
    assert_eq!(lines(&client, wrong).await, [""; 0]);
    let sums = "SELECT count(*) || ' ' || sum(cents) FROM charge";
    assert_eq!(lines(&client, sums).await, [format!("{ORDERS} {}", ORDERS * (ORDERS + 1) / 2)]);
    assert_eq!(lines(&client, "SELECT count(*)::text FROM oncebox.message").await, [ORDERS.to_string()]);
    let letters =
        "SELECT coalesce(key, '-') || ': ' || reason FROM oncebox.dead_letter ORDER BY key NULLS LAST";
    let expected = [
        "negative: a negative price",
        "order-1:charge: the key was used before with another payload",
        "-: no key: none of the headers Idempotency-Key, x-idempotency-key is present",
    ];
    assert_eq!(lines(&client, letters).await, expected);
    let rejected =
        "SELECT key || ' ' || convert_from(outcome, 'UTF8') FROM oncebox.inbox WHERE status = 'rejected'";
    assert_eq!(lines(&client, rejected).await, ["free \"nothing to charge\""]);
}
