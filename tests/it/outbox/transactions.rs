//! The outbox crate against PostgreSQL: the promises to producers.

use std::time::Duration;

use oncebox_outbox::{Error, Key, Message, Outbox};
use oncebox_tests::{TestEnv, eventually};
use tokio_postgres::{Client, Row};

const LIMIT: Duration = Duration::from_secs(10);

fn message(key: &str, payload: &str) -> Message {
    Message::bytes(key.parse::<Key>().unwrap(), "orders.placed".parse().unwrap(), payload)
}

async fn log(client: &Client) -> Vec<Row> {
    let sql = "SELECT id, lane, key, subject, ordering_key, headers::text, payload FROM oncebox.message ORDER BY id";
    client.query(sql, &[]).await.unwrap()
}

async fn keys(client: &Client) -> Vec<String> {
    log(client).await.iter().map(|row| row.get("key")).collect()
}

#[tokio::test]
async fn a_message_exists_if_and_only_if_its_transaction_commits() {
    let env = TestEnv::new().await;
    let (mut producer, reader) = (env.pg().await, env.pg().await);
    let outbox = Outbox::default();

    let transaction = producer.transaction().await.unwrap();
    assert!(outbox.enqueue(&transaction, &message("rolled-back", "")).await.unwrap().is_some());
    transaction.rollback().await.unwrap();
    assert!(keys(&reader).await.is_empty());

    // Dropping without a commit is how an early return with `?` ends.
    let transaction = producer.transaction().await.unwrap();
    outbox.enqueue_all(&transaction, &[message("dropped", "")]).await.unwrap();
    drop(transaction);

    let mut transaction = producer.transaction().await.unwrap();
    let savepoint = transaction.transaction().await.unwrap();
    outbox.enqueue(&savepoint, &message("savepoint-rolled-back", "")).await.unwrap();
    savepoint.rollback().await.unwrap();
    outbox.enqueue(&transaction, &message("committed", "")).await.unwrap();
    assert!(keys(&reader).await.is_empty(), "nothing is visible before the commit");
    transaction.commit().await.unwrap();
    assert_eq!(keys(&reader).await, ["committed"]);
}

#[tokio::test]
async fn every_part_of_a_message_arrives() {
    #[derive(serde::Serialize)]
    struct Order<'a> {
        customer: &'a str,
        cents: i64,
    }

    let env = TestEnv::new().await;
    let mut pool_client = env.pool(1).get().await.unwrap();
    let transaction = pool_client.transaction().await.unwrap();
    let key = Key::root("order:4711").unwrap().step("process-payment").unwrap();
    let order = Order { customer: "Zoë", cents: 995 };
    let json = Message::json(key, "orders.placed".parse().unwrap(), &order)
        .unwrap()
        .ordering_key("customer:7")
        .header("tenant", "acme")
        .unwrap()
        .header("note", "tab\t\"quoted\" \\ ümläut")
        .unwrap();
    let bytes = Message::bytes("raw".parse().unwrap(), "raw.bytes".parse().unwrap(), vec![0, 255, 128]);
    let outbox = Outbox::default();
    let first = outbox.enqueue(&transaction, &json).await.unwrap().unwrap();
    let second = outbox.enqueue(&transaction, &bytes).await.unwrap().unwrap();
    transaction.commit().await.unwrap();

    let reader = env.pg().await;
    let rows = log(&reader).await;
    assert_eq!(rows.iter().map(|row| row.get("id")).collect::<Vec<i64>>(), [first, second]);
    assert_eq!(rows[0].get::<_, &str>("key"), "order%3A4711:process-payment");
    assert_eq!(rows[0].get::<_, &str>("subject"), "orders.placed");
    assert_eq!(rows[0].get::<_, Option<&str>>("ordering_key"), Some("customer:7"));
    assert_eq!(rows[0].get::<_, &[u8]>("payload"), r#"{"customer":"Zoë","cents":995}"#.as_bytes());
    let note = "SELECT headers->>'note' || '/' || (headers->>'tenant') FROM oncebox.message WHERE id = $1";
    let note: String = reader.query_one(note, &[&first]).await.unwrap().get(0);
    assert_eq!(note, "tab\t\"quoted\" \\ ümläut/acme");
    assert_eq!(rows[1].get::<_, &[u8]>("payload"), [0, 255, 128]);
    assert_eq!(rows[1].get::<_, Option<&str>>("ordering_key"), None);
    assert_eq!(rows[1].get::<_, &str>("headers"), "{}");
}

#[tokio::test]
async fn the_very_same_message_is_enqueued_once() {
    let env = TestEnv::new().await;
    let mut client = env.pg().await;
    let outbox = Outbox::default();
    let retried = message("retried", "same").ordering_key("k");
    let transaction = client.transaction().await.unwrap();
    assert!(outbox.enqueue(&transaction, &retried).await.unwrap().is_some());
    assert_eq!(outbox.enqueue(&transaction, &retried).await.unwrap(), None, "in the same transaction");
    transaction.commit().await.unwrap();

    let transaction = client.transaction().await.unwrap();
    assert_eq!(outbox.enqueue(&transaction, &retried).await.unwrap(), None, "in a later one");
    let batch = [message("new", "1"), retried.clone(), message("new", "1")];
    let ids = outbox.enqueue_all(&transaction, &batch).await.unwrap();
    assert!(matches!(ids[..], [Some(_), None, None]), "{ids:?}");
    transaction.commit().await.unwrap();
    assert_eq!(keys(&client).await, ["retried", "new"]);
}

#[tokio::test]
async fn one_key_for_two_messages_is_a_conflict_that_names_the_key() {
    let env = TestEnv::new().await;
    let mut client = env.pg().await;
    let outbox = Outbox::default();
    let transaction = client.transaction().await.unwrap();
    outbox.enqueue(&transaction, &message("k:pay", "one")).await.unwrap();
    transaction.commit().await.unwrap();

    let other_payload = message("k:pay", "two");
    let other_subject = Message::bytes("k:pay".parse().unwrap(), "orders.other".parse().unwrap(), "one");
    for conflicting in [other_payload, other_subject] {
        let transaction = client.transaction().await.unwrap();
        match outbox.enqueue(&transaction, &conflicting).await {
            Err(Error::Conflict { key, .. }) => assert_eq!(key.as_str(), "k:pay"),
            other => panic!("{other:?}"),
        }
        drop(transaction);
        let transaction = client.transaction().await.unwrap();
        let batch = [message("first", ""), conflicting, message("last", "")];
        match outbox.enqueue_all(&transaction, &batch).await {
            Err(Error::Conflict { key, .. }) => assert_eq!(key.as_str(), "k:pay"),
            other => panic!("{other:?}"),
        }
        transaction.rollback().await.unwrap();
    }
    assert_eq!(keys(&client).await, ["k:pay"], "a refused call changes nothing");
}

#[tokio::test]
async fn a_key_in_an_open_transaction_is_waited_for() {
    let env = TestEnv::new().await;
    let (mut first, mut second, observer) = (env.pg().await, env.pg().await, env.pg().await);
    let outbox = Outbox::default();
    let open = first.transaction().await.unwrap();
    outbox.enqueue(&open, &message("contended", "payload")).await.unwrap();
    let waiting = second.transaction().await.unwrap();
    let both = message("contended", "payload");
    let (id, ()) = tokio::join!(outbox.enqueue(&waiting, &both), async {
        let blocked =
            "SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted AND pid IN
                       (SELECT pid FROM pg_stat_activity WHERE datname = current_database())";
        eventually("the second producer waits", LIMIT, async || {
            (observer.query_one(blocked, &[]).await.unwrap().get::<_, i64>(0) == 1).then_some(())
        })
        .await;
        open.rollback().await.unwrap();
    });
    assert!(id.unwrap().is_some(), "the first one rolled back, so this one enqueues");
    waiting.commit().await.unwrap();
    assert_eq!(keys(&observer).await, ["contended"]);
}

#[tokio::test]
async fn ten_thousand_and_more_in_one_call_keep_their_order() {
    let env = TestEnv::new().await;
    let mut pool_client = env.pool(1).get().await.unwrap();
    let messages: Vec<Message> = (0..10_001_u32)
        .map(|n| {
            let key = Key::root("bulk").unwrap().part(n).unwrap();
            Message::bytes(key, "bulk.sent".parse().unwrap(), n.to_be_bytes())
                .ordering_key(format!("customer:{}", n % 7))
                .header("n", n.to_string())
                .unwrap()
        })
        .collect();
    let transaction = pool_client.transaction().await.unwrap();
    let ids = Outbox::default().enqueue_all(&transaction, &messages).await.unwrap();
    transaction.commit().await.unwrap();

    let ids: Vec<i64> = ids.into_iter().map(|id| id.expect("all are new")).collect();
    assert!(ids.is_sorted_by(|a, b| a < b), "ids follow the order given");
    let reader = env.pg().await;
    let rows = log(&reader).await;
    assert_eq!(rows.len(), messages.len());
    for (n, row) in rows.iter().enumerate() {
        assert_eq!(row.get::<_, i64>("id"), ids[n]);
        assert_eq!(row.get::<_, &[u8]>("payload"), u32::try_from(n).unwrap().to_be_bytes());
        assert_eq!(row.get::<_, &str>("headers"), format!("{{\"n\": \"{n}\"}}"));
        assert_eq!(row.get::<_, &str>("ordering_key"), format!("customer:{}", n % 7));
    }
    let lanes = "SELECT count(DISTINCT lane) FROM oncebox.message GROUP BY ordering_key";
    for row in reader.query(lanes, &[]).await.unwrap() {
        assert_eq!(row.get::<_, i64>(0), 1, "one ordering key, one lane");
    }
}

#[tokio::test]
async fn headers_at_the_limit_pass_both_checks_and_one_byte_more_neither() {
    let env = TestEnv::new().await;
    let mut client = env.pg().await;
    let base = || message("h", "").header("a", "\"quoted\"\t\\").unwrap();
    let free = 16_384 - r#"{"a": "\"quoted\"\t\\", "b": ""}"#.len();
    let fits = base().header("b", "v".repeat(free)).unwrap();
    assert!(base().header("b", "v".repeat(free + 1)).is_err(), "the crate's own check");

    let transaction = client.transaction().await.unwrap();
    Outbox::default().enqueue(&transaction, &fits).await.unwrap();
    transaction.commit().await.unwrap();
    let size = "SELECT octet_length(headers::text) FROM oncebox.message";
    assert_eq!(client.query_one(size, &[]).await.unwrap().get::<_, i32>(0), 16_384, "PostgreSQL's count");
}

#[tokio::test]
async fn every_name_the_crate_refuses_postgresql_refuses_too() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let check = async |name: &str, value: &str| {
        let sql = "SELECT oncebox.check_headers(h) FROM jsonb_build_object($1::text, $2::text) AS h";
        client.query_one(sql, &[&name, &value]).await.is_ok()
    };
    let long = "n".repeat(128);
    let longer = "n".repeat(129);
    for name in [
        "tenant",
        "Traceparent",
        "x-nats",
        "nats-x",
        "Nats-Rollup",
        "oncebox-id",
        "Idempotency-Key",
        "x-idempotency-key",
        "y-idempotency-key",
        "Idempotency-Keys",
        "a b",
        "a:b",
        "",
        "ä",
        "!#$%&'*+.^_`|~-",
        "a/b",
        "a\"b",
        &long,
        &longer,
    ] {
        assert_eq!(message("k", "").header(name, "v").is_ok(), check(name, "v").await, "{name:?}");
    }
    for value in ["", " ", "ü", "\t", "\n", "\r", "\u{1}", "\u{1f}", "\u{7f}", "\u{80}", "\u{85}", "\"\\"] {
        assert_eq!(message("k", "").header("h", value).is_ok(), check("h", value).await, "{value:?}");
    }
}

#[tokio::test]
async fn errors_say_what_to_do() {
    let env = TestEnv::new().await;
    let mut client = env.pg().await;

    let elsewhere = Outbox::new("not_here".parse().unwrap());
    let transaction = client.transaction().await.unwrap();
    let error = elsewhere.enqueue(&transaction, &message("k", "")).await.unwrap_err();
    assert!(matches!(error, Error::NotInstalled { .. }), "{error:?}");
    assert!(error.to_string().contains("oncebox migrate"), "{error}");
    transaction.rollback().await.unwrap();

    // Refused here, so that the transaction can go on.
    let transaction = client.transaction().await.unwrap();
    let error =
        Outbox::default().enqueue(&transaction, &message("k", "").ordering_key("a b")).await.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
    transaction.query_one("SELECT 1", &[]).await.unwrap();
    drop(transaction);

    let serializable = || tokio_postgres::IsolationLevel::RepeatableRead;
    let mut other = env.pg().await;
    let late = client.build_transaction().isolation_level(serializable()).start().await.unwrap();
    late.query_one("SELECT 1", &[]).await.unwrap();
    let early = other.transaction().await.unwrap();
    Outbox::default().enqueue(&early, &message("race", "")).await.unwrap();
    early.commit().await.unwrap();
    let error = Outbox::default().enqueue(&late, &message("race", "")).await.unwrap_err();
    assert!(matches!(error, Error::Retry { .. }), "{error:?}");
}

#[tokio::test]
async fn a_user_without_the_role_of_producers_is_told_so() {
    let env = TestEnv::new().await;
    let mut stranger = env.pg().await;
    stranger.batch_execute("SET ROLE pg_monitor").await.unwrap();
    let transaction = stranger.transaction().await.unwrap();
    let error = Outbox::default().enqueue(&transaction, &message("k", "")).await.unwrap_err();
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
    assert!(error.to_string().contains("_producer"), "{error}");
}

#[tokio::test]
async fn the_trace_of_the_producer_is_in_the_message() {
    use opentelemetry::trace::{TraceContextExt, TracerProvider};
    use tracing::{Instrument, instrument::WithSubscriber};
    use tracing_opentelemetry::OpenTelemetrySpanExt;
    use tracing_subscriber::prelude::*;

    let env = TestEnv::new().await;
    let mut client = env.pg().await;
    let tracer = opentelemetry_sdk::trace::SdkTracerProvider::builder().build().tracer("test");
    let subscriber = tracing_subscriber::registry().with(tracing_opentelemetry::layer().with_tracer(tracer));
    let produce = async {
        let span = tracing::info_span!("place order");
        let context = span.context().span().span_context().clone();
        let enqueue = async {
            let transaction = client.transaction().await.unwrap();
            Outbox::default().enqueue(&transaction, &message("traced", "")).await.unwrap();
            Outbox::default().enqueue_all(&transaction, &[message("traced-2", "")]).await.unwrap();
            transaction.commit().await.unwrap();
        };
        enqueue.instrument(span).await;
        format!("00-{}-{}-01", context.trace_id(), context.span_id())
    };
    let traceparent = produce.with_subscriber(subscriber).await;
    for row in log(&env.pg().await).await {
        assert_eq!(row.get::<_, &str>("headers"), format!("{{\"traceparent\": \"{traceparent}\"}}"));
    }
}

#[tokio::test]
async fn a_program_that_finds_another_schema_version_says_so_at_its_start() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let outbox = Outbox::default();
    outbox.check(&client).await.unwrap();
    client
        .batch_execute("INSERT INTO oncebox.migration (version, name) VALUES (999, 'newer')")
        .await
        .unwrap();
    let error = outbox.check(&client).await.unwrap_err().to_string();
    assert!(error.contains("999") && error.contains("use a newer Oncebox"), "{error}");
    let missing = Outbox::new("elsewhere".parse().unwrap()).check(&client).await.unwrap_err().to_string();
    assert!(missing.contains("\"elsewhere\"") && missing.contains("oncebox migrate"), "{missing}");
}
