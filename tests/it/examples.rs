//! Every example runs, with the output and the effects that it promises.

use std::{
    path::{Path, PathBuf},
    process::{Output, Stdio},
    time::Duration,
};

use hmac::{Hmac, KeyInit, Mac};
use oncebox_tests::{TestEnv, postgres_directory};
use sha2::Sha256;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
    time::timeout,
};

use crate::http::support::{request, send};

const LIMIT: Duration = Duration::from_secs(60);
const DEMO_LIMIT: Duration = Duration::from_secs(180);
const CONFLICT: &str = "key \"sql:process-payment\" is already enqueued with another payload";

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// A binary of the workspace: `make test` builds them; test binaries live one directory below.
fn binary(name: &str) -> PathBuf {
    let path = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join(name);
    assert!(path.is_file(), "{} is not built: run `cargo build --workspace --bins`", path.display());
    path
}

async fn output(mut command: Command, limit: Duration) -> Output {
    let running = command.stdin(Stdio::null()).kill_on_drop(true).output();
    timeout(limit, running).await.expect("the example ends in time").unwrap()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[derive(Clone, Copy, Debug)]
enum Producer {
    Sql,
    Python,
    Rust,
}

impl Producer {
    async fn place(self, env: &TestEnv, key: &str, customer: i32, cents: i64) -> Output {
        let arguments = [key.to_owned(), customer.to_string(), cents.to_string()];
        let examples = repository().join("examples");
        let mut command = match self {
            Self::Sql => {
                let mut command = Command::new(postgres_directory().unwrap().join("psql"));
                command.arg(env.database_url()).args(["--no-psqlrc", "--quiet", "--file"]);
                command.arg(examples.join("producer.sql"));
                for (name, value) in ["request_key", "customer", "cents"].iter().zip(&arguments) {
                    command.arg(format!("--variable={name}={value}"));
                }
                command
            }
            Self::Python => {
                let packages = repository().join(".dev/python");
                assert!(packages.is_dir(), "psycopg is not installed: run `make .dev/python`");
                let mut command = Command::new("python3");
                command.arg(examples.join("producer.py")).args(&arguments).env("PYTHONPATH", packages);
                command
            }
            Self::Rust => {
                let mut command = Command::new(binary("order"));
                command.args(&arguments);
                command
            }
        };
        command.env("DATABASE_URL", env.database_url());
        output(command, LIMIT).await
    }
}

#[tokio::test]
async fn producers_in_sql_python_and_rust_send_the_same_message() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    // The first one also creates the tables.
    let producers = [(Producer::Sql, "sql"), (Producer::Python, "python"), (Producer::Rust, "rust")];
    for (number, (producer, key)) in (1..).zip(producers) {
        let placed = producer.place(&env, key, 7, 995).await;
        let said = text(&placed);
        assert!(placed.status.success(), "{said}");
        let expected = match producer {
            Producer::Rust => format!("order {number} is number {number} of customer 7\n"),
            Producer::Sql | Producer::Python => format!("order {number}, message {number}\n"),
        };
        assert_eq!(said, expected);
    }
    // The same requests again: the same orders, and no second message.
    for (number, (producer, key)) in (1..).zip(producers) {
        let retried = producer.place(&env, key, 7, 995).await;
        let said = text(&retried);
        assert!(retried.status.success(), "{said}");
        let expected = match producer {
            Producer::Rust => format!("order {number} is number {number} of customer 7\n"),
            Producer::Sql | Producer::Python => format!("order {number}, message enqueued already\n"),
        };
        assert_eq!(said, expected);
    }
    // A client that uses its key for another request is refused, and nothing changes.
    for (producer, _) in producers {
        let refused = producer.place(&env, "sql", 7, 1).await;
        assert!(!refused.status.success(), "{producer:?} charges another price under the same key");
        assert!(text(&refused).contains(CONFLICT), "{producer:?}: {}", text(&refused));
    }

    let sql = "SELECT key, subject, ordering_key, headers::text, convert_from(payload, 'UTF8')
               FROM oncebox.message ORDER BY id";
    let messages: Vec<[String; 5]> = client
        .query(sql, &[])
        .await
        .unwrap()
        .iter()
        .map(|row| std::array::from_fn(|column| row.get(column)))
        .collect();
    let expected = (1..).zip(producers).map(|(number, (_, key))| {
        let payload = format!(r#"{{"order":{number},"customer":7,"number":{number},"cents":995}}"#);
        let key = format!("{key}:process-payment");
        [key, "orders.placed".to_owned(), "customer:7".to_owned(), "{}".to_owned(), payload]
    });
    assert_eq!(messages, expected.collect::<Vec<_>>());
    let orders = client.query_one("SELECT count(*) FROM orders", &[]).await.unwrap();
    assert_eq!(orders.get::<_, i64>(0), 3);
}

/// One order over HTTP, three times, while its server is asked to stop and another one takes over.
#[tokio::test]
async fn the_shop_places_an_order_once_and_stops_when_asked() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    client.batch_execute(include_str!("../../examples/src/order/schema.sql")).await.unwrap();
    let mut answers = Vec::new();
    for _ in 0..2 {
        let mut command = Command::new(binary("shop"));
        command.arg("127.0.0.1:0").env("DATABASE_URL", env.database_url()).kill_on_drop(true);
        let mut shop = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(shop.stdout.take().unwrap()).lines();
        let line = timeout(LIMIT, lines.next_line()).await.unwrap().unwrap().unwrap();
        let address = line.strip_prefix("listening on ").unwrap().parse().unwrap();
        let headers = [("idempotency-key", "\"web:1\""), ("content-type", "application/json")];
        for _ in 0..2 {
            answers.push(
                send(address, request("POST", "/orders", &headers, r#"{"customer":7,"cents":995}"#)).await,
            );
        }
        let pid = shop.id().unwrap().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().await.unwrap().success());
        assert!(timeout(LIMIT, shop.wait()).await.unwrap().unwrap().success());
    }
    for (number, answer) in (0..).zip(&answers) {
        assert_eq!((answer.status, answer.header("location")), (201, "/orders/1"), "{answer:?}");
        assert_eq!(answer.replayed(), if number == 0 { "false" } else { "true" });
        assert_eq!(answer.text(), r#"{"order":1,"customer":7,"number":1,"cents":995}"#);
    }
    let row = client.query_one("SELECT count(*), min(key) FROM oncebox.message", &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, &str>(1)), (1, "web%3A1:process-payment"));
}

fn signed(secret: &str, parts: &[&str]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    parts.iter().for_each(|part| mac.update(part.as_bytes()));
    data_encoding::HEXLOWER.encode(&mac.finalize().into_bytes())
}

/// Deliveries of GitHub's and Stripe's, each of them twice, and some that are forged.
#[tokio::test]
async fn a_delivery_of_a_webhook_is_handled_once_and_a_forged_one_is_refused() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    client.batch_execute(include_str!("../../examples/src/webhook/schema.sql")).await.unwrap();
    let mut command = Command::new(binary("webhook"));
    command.arg("127.0.0.1:0").env("DATABASE_URL", env.database_url()).kill_on_drop(true);
    command.env("GITHUB_SECRET", "octocat").env("STRIPE_SECRET", "whsec_1");
    let mut webhook = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(webhook.stdout.take().unwrap()).lines();
    let line = timeout(LIMIT, lines.next_line()).await.unwrap().unwrap().unwrap();
    let address = line.strip_prefix("listening on ").unwrap().parse().unwrap();
    let status = async |path, headers: &[(&str, &str)], body| {
        send(address, request("POST", path, headers, body)).await.status
    };

    let push = r#"{"ref":"refs/heads/main","repository":{"id":1,"full_name":"octo/cat"},"commits":[]}"#;
    let signature = format!("sha256={}", signed("octocat", &[push]));
    let delivery = "72d3162e-cc78-11e3-81ab-4c9367dc0958";
    let headers =
        [("X-GitHub-Event", "push"), ("X-GitHub-Delivery", delivery), ("X-Hub-Signature-256", &signature)];
    assert_eq!(status("/github", &headers, push).await, 204);
    assert_eq!(status("/github", &headers, push).await, 204);
    assert_eq!(status("/github", &headers, r#"{"repository":{"full_name":"evil/cat"}}"#).await, 401);

    let paid = r#"{"id":"evt_1","type":"payment_intent.succeeded","data":{"object":{"amount":1999}}}"#;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    for (time, secret, expected) in [
        (now, "whsec_1", 204),
        (now + 1, "whsec_1", 204),
        (now, "whsec_2", 401),
        (now - 3600, "whsec_1", 401),
    ] {
        let signature = format!("t={time},v1={}", signed(secret, &[&time.to_string(), ".", paid]));
        assert_eq!(status("/stripe", &[("Stripe-Signature", &signature)], paid).await, expected);
    }
    let nameless = r#"{"type":"payment_intent.succeeded","data":{"object":{"amount":1}}}"#;
    let signature = format!("t={now},v1={}", signed("whsec_1", &[&now.to_string(), ".", nameless]));
    assert_eq!(status("/stripe", &[("Stripe-Signature", &signature)], nameless).await, 204, "a dead letter");

    let sql = "SELECT string_agg(key || ' ' || kind || ' ' || what, ', ' ORDER BY kind) FROM webhook_event";
    let events: String = client.query_one(sql, &[]).await.unwrap().get(0);
    assert_eq!(events, format!("evt_1 paid 1999, {delivery} push octo/cat"));
    let reason = client.query_one("SELECT reason FROM oncebox.dead_letter", &[]).await.unwrap();
    assert_eq!(reason.get::<_, &str>(0), "no key: none of these is present: \"/id\" of the payload");
}

/// Two partitions of a log, one of which repeats a record of the other. The process ends after the
/// handler's commit and before the position is stored, and is started again.
#[tokio::test]
async fn a_record_of_a_partition_is_handled_once_through_a_crash_before_its_position_is_stored() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    client.batch_execute(include_str!("../../examples/src/partitions/schema.sql")).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let record = |key: &str, value: &str| {
        format!("{}\n", serde_json::json!({ "seconds": 1_700_000_000, "key": key, "value": value }))
    };
    let booked = r#"{"cents":5}"#;
    std::fs::write(at("a-0.log"), ["k0", "k1", "k2"].map(|key| record(key, booked)).concat()).unwrap();
    std::fs::write(at("a-1.log"), record("k1", booked) + &record("bad", "5") + &record("k3", booked))
        .unwrap();
    let run = async || {
        let mut command = Command::new(binary("partitions"));
        command.arg(directory.path()).args(["a-0", "a-1"]).env("DATABASE_URL", env.database_url());
        output(command, LIMIT).await
    };
    let rows = async |sql: &str| -> Vec<String> {
        client.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
    };

    // A position is written to `a-0.next` first. A directory of this name makes that fail.
    std::fs::create_dir(at("a-0.next")).unwrap();
    let crashed = run().await;
    assert!(!crashed.status.success() && text(&crashed).contains("a-0.next"), "{}", text(&crashed));
    assert_eq!(rows("SELECT key FROM posting WHERE key = 'k0'").await, ["k0"]);
    assert!(!at("a-0.position").exists());

    std::fs::remove_dir(at("a-0.next")).unwrap();
    let ended = run().await;
    assert!(ended.status.success(), "{}", text(&ended));
    let postings = rows("SELECT key || ' ' || cents FROM posting ORDER BY 1").await;
    assert_eq!(postings, ["k0 5", "k1 5", "k2 5", "k3 5"]);
    let letters = rows("SELECT stream || ' ' || stream_sequence FROM oncebox.dead_letter").await;
    assert_eq!(letters, ["a-1 1"]);
    for name in ["a-0.position", "a-1.position"] {
        assert_eq!(std::fs::read_to_string(at(name)).unwrap(), "3");
    }
}

/// `make demo` is the real run; this is a short one, on servers of its own.
async fn demo(arguments: &[&str]) -> Output {
    let mut command = Command::new(binary("demo"));
    command.args(arguments).env_remove("DATABASE_URL").env_remove("NATS_URL");
    output(command, DEMO_LIMIT).await
}

#[tokio::test]
async fn the_demo_ends_with_exactly_once() {
    let run = demo(&["messages", "--orders", "400"]).await;
    let said = text(&run);
    assert!(run.status.success(), "{said}");
    let last = said.lines().last().unwrap();
    assert!(last.starts_with("exactly once: 360 orders, 360 charges, "), "{said}");
    assert!(last.ends_with(" duplicate deliveries absorbed, 0 lost, 0 doubled, 0 out of order"), "{said}");
    let planted = "planted errors found by the audit 3 of 3";
    let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(planted), "{said}");
}

#[tokio::test]
async fn the_demo_notices_falsified_books() {
    let run = demo(&["messages", "--orders", "200", "--sabotage", "double"]).await;
    let said = text(&run);
    assert_eq!(run.status.code(), Some(1), "{said}");
    assert!(said.contains("WRONG: 1 charged more than once: order "), "{said}");
    let last = said.lines().last().unwrap();
    assert!(said.contains("NOT exactly once: 180 orders, 181 charges, "), "{said}");
    assert!(said.contains(" 0 lost, 1 doubled, 0 out of order"), "{last}");
}
