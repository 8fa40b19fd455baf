//! Sagas of files: started in SQL, in the caller's transaction, and led by the same orchestrator.

use oncebox_saga::{Orchestrator, SagaFile};
use oncebox_tests::TestEnv;
use serde_json::{Value, json};
use tokio_postgres::{Client, Error, error::SqlState};

use crate::{
    relay::process::run,
    saga::shop::{Shop, is_handled},
};

const ORDER: &str = include_str!("../../../saga/src/file/order.toml");

fn file(change: impl Fn(String) -> String) -> SagaFile {
    SagaFile::parse(&change(ORDER.to_owned())).unwrap()
}

fn led(files: &[&SagaFile], scope: &str) -> Orchestrator {
    let builder = Orchestrator::builder("sagas.replies".parse().unwrap()).scope(scope).leave_missing();
    files.iter().fold(builder, |builder, file| builder.file(file)).build().unwrap()
}

async fn started(client: &Client, id: &str, data: Value) -> Result<(i64, String, bool), Error> {
    started_of(client, id, data, None).await
}

async fn started_of(
    client: &Client,
    id: &str,
    data: Value,
    version: Option<i32>,
) -> Result<(i64, String, bool), Error> {
    let sql = "SELECT id, key, is_new FROM oncebox.start_saga('order', $1, $2::text::jsonb, $3)";
    let row = client.query_one(sql, &[&id, &data.to_string(), &version]).await?;
    Ok((row.get(0), row.get(1), row.get(2)))
}

fn code(error: &Error) -> &str {
    error.code().map_or("none", SqlState::code)
}

async fn shop() -> Shop {
    let file = file(|text| text);
    let shop = Shop::led_by(led(&[&file], "saga")).await;
    shop.orchestrator.check(&shop.client).await.unwrap();
    shop
}

async fn payload(shop: &Shop, key: &str) -> String {
    let sql = "SELECT convert_from(payload, 'UTF8') FROM oncebox.message WHERE key = $1";
    shop.client.query_one(sql, &[&key]).await.unwrap().get(0)
}

#[tokio::test]
async fn a_saga_of_a_file_goes_from_step_to_step() {
    let mut shop = shop().await;
    let data = json!({"order": 17, "cents": 500, "note": null, "more": [12345678901234567u64]});
    let (id, key, is_new) = started(&shop.client, "o-1", data.clone()).await.unwrap();
    assert_eq!((key.as_str(), is_new), ("o-1:order", true));
    assert_eq!(shop.sent("o-1").await, ["reserve", "pay"]);
    let sent: Value = serde_json::from_str(&payload(&shop, "o-1:order:reserve").await).unwrap();
    assert_eq!(sent, json!({"order": 17, "note": ""}));
    let header = "SELECT headers ->> 'Oncebox-Reply-To' FROM oncebox.message WHERE key = 'o-1:order:pay'";
    let header: String = shop.client.query_one(header, &[]).await.unwrap().get(0);
    assert_eq!(header, "sagas.replies");
    let again = started(&shop.client, "o-1", data).await.unwrap();
    assert_eq!(again, (id, key, false), "with the same data it is the same saga");

    assert!(is_handled(&shop.tell("o-1:order:pay", "done").await));
    let all: Value = serde_json::from_str(&payload(&shop, "o-1:order:notify").await).unwrap();
    assert_eq!(all["more"], json!([12345678901234567u64]));
    assert!(is_handled(&shop.tell("o-1:order:reserve", "done {\"id\": \"r-1\"}").await));
    assert!(is_handled(&shop.tell("o-1:order:notify", "done").await));
    let sent: Value = serde_json::from_str(&payload(&shop, "o-1:order:ship").await).unwrap();
    assert_eq!(sent, json!({"reservation": "r-1", "kind": {"from": "store"}}));
    assert!(is_handled(&shop.tell("o-1:order:ship", "done").await));
    shop.is("o-1", "completed").await;
}

#[tokio::test]
async fn a_no_undoes_a_saga_of_a_file_with_the_replies() {
    let mut shop = shop().await;
    started(&shop.client, "o-1", json!({"order": 17, "cents": 500})).await.unwrap();
    shop.tell("o-1:order:reserve", "done {\"id\": \"r-1\"}").await;
    shop.tell("o-1:order:pay", "rejected {\"why\": \"declined\"}").await;
    let undo: Value = serde_json::from_str(&payload(&shop, "o-1:order:reserve:undo").await).unwrap();
    assert_eq!(undo, json!({"order": 17, "id": "r-1"}));
    shop.tell("o-1:order:reserve:undo", "done").await;
    shop.is("o-1", "compensated").await;
    let refused = "SELECT data #>> '{refusals,pay,why}' FROM oncebox.saga";
    let refused: String = shop.client.query_one(refused, &[]).await.unwrap().get(0);
    assert_eq!(refused, "declined", "operators see why");
}

#[tokio::test]
async fn a_reply_without_a_field_puts_its_saga_into_quarantine() {
    let mut shop = shop().await;
    started(&shop.client, "o-1", json!({"order": 17, "cents": 500})).await.unwrap();
    shop.tell("o-1:order:reserve", "done {\"number\": \"secret\"}").await;
    let (state, reason) = shop.state("o-1").await;
    let said = "step \"reserve\", its answer: field /id is missing";
    assert_eq!((state.as_str(), reason.as_deref()), ("quarantined", Some(said)));
}

/// A later step needs the reply of the skipped one: an operator gives it, or is refused.
#[tokio::test]
async fn a_step_is_skipped_with_the_reply_that_a_later_one_needs() {
    let mut shop = shop().await;
    let url = shop.env.database_url().to_owned();
    started(&shop.client, "o-1", json!({"order": 17, "cents": 500})).await.unwrap();
    shop.tell("o-1:order:pay", "done").await;
    shop.tell("o-1:order:notify", "done").await;
    shop.tell("o-1:order:reserve", "done {\"number\": 7}").await;
    shop.is("o-1", "quarantined").await;
    let before = shop.everything().await;
    let skip = ["saga", "skip", "--key", "o-1:order", "--step", "reserve", "--by", "mina"];
    for reply in [&[][..], &["--reply", r#"{"number": 7}"#]] {
        let (code, _, log) = run(&url, &[&skip, reply].concat()).await;
        let said = "step \"ship\" needs /id of it";
        assert!(code == 1 && log.replace("\\\"", "\"").contains(said), "{reply:?}: {log}");
        assert!(log.contains("oncebox saga skip --reply"), "{log}");
    }
    assert_eq!(shop.everything().await, before, "nothing was skipped");
    let (code, _, log) = run(&url, &[&skip[..], &["--reply", "{id: 7}"]].concat()).await;
    assert!(code == 64 && log.contains("not JSON"), "{log}");
    let given = run(&url, &[&skip[..], &["--reply", r#"{"id": "by hand"}"#]].concat()).await;
    assert_eq!(given.0, 0, "{given:?}");
    assert_eq!(shop.look().await, 1);
    let sent: Value = serde_json::from_str(&payload(&shop, "o-1:order:ship").await).unwrap();
    assert_eq!(sent["reservation"], "by hand");
    assert!(is_handled(&shop.tell("o-1:order:ship", "done").await));
    shop.is("o-1", "completed").await;
}

/// Nothing of a start that fails is kept, and the code names the remedy.
#[tokio::test]
async fn a_start_is_whole_or_an_error() {
    let shop = shop().await;
    let good = json!({"order": 17, "cents": 500});
    started(&shop.client, "o-1", good.clone()).await.unwrap();
    let before = shop.everything().await;
    let long = "x".repeat(128);
    for (id, data, said) in [
        ("o-1", json!({"order": 17, "cents": 501}), "OB016"),
        ("o-2", json!({"order": 17}), "OB011"),
        ("o-2", json!({"order": "17", "cents": 500}), "OB011"),
        ("o-2", json!({"order": 1.5, "cents": 500}), "OB011"),
        ("o-2", json!({"order": 17, "cents": 500, "note": 1}), "OB011"),
        ("o-2", json!([1]), "OB011"),
        ("", good.clone(), "OB002"),
        (&*(long + "x"), good.clone(), "OB002"),
    ] {
        let refused = started(&shop.client, id, data.clone()).await.unwrap_err();
        assert_eq!(code(&refused), said, "{id} {data}: {refused:?}");
    }
    assert_eq!(code(&started_of(&shop.client, "o-2", good.clone(), Some(2)).await.unwrap_err()), "OB015");
    assert_eq!(shop.everything().await, before);
    let other = "SELECT oncebox.start_saga('other', 'o-1', '{}')";
    assert_eq!(code(&shop.client.query_one(other, &[]).await.unwrap_err()), "OB015");
    // Retention has deleted it, and its business id comes again.
    shop.client.batch_execute("DELETE FROM oncebox.saga").await.unwrap();
    let refused = started(&shop.client, "o-1", good.clone()).await.unwrap_err();
    assert_eq!(code(&refused), "OB016", "{refused:?}");
    let number = shop.number("SELECT count(*) FROM oncebox.saga").await;
    assert_eq!(number, 0, "a saga without its commands would wait in vain");
    shop.client.batch_execute("BEGIN").await.unwrap();
    started(&shop.client, "o-3", good).await.unwrap();
    shop.client.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(shop.sent("o-3").await, [""; 0], "it is the caller's transaction");
}

#[tokio::test]
async fn starts_of_one_business_id_at_once_are_one_saga() {
    let shop = shop().await;
    let (first, second) = (shop.env.pg().await, shop.env.pg().await);
    let data = json!({"order": 17, "cents": 500});
    first.batch_execute("BEGIN").await.unwrap();
    let one = started(&first, "o-1", data.clone()).await.unwrap();
    let (other, ()) = tokio::join!(started(&second, "o-1", data), async {
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%start_saga%'
                     AND datname = current_database()";
        oncebox_tests::eventually("the second waits", std::time::Duration::from_secs(20), async || {
            (shop.number(waits).await == 1).then_some(())
        })
        .await;
        first.batch_execute("COMMIT").await.unwrap();
    });
    assert_eq!(other.unwrap(), (one.0, one.1, false));
}

/// A changed file needs a new version while sagas of the old one run; both are led side by side.
#[tokio::test]
async fn a_file_that_changed_needs_a_new_version() {
    let mut shop = shop().await;
    let data = json!({"order": 17, "cents": 500});
    let changed = file(|text| text.replace("\"eur\"", "\"usd\""));
    // No saga has begun with it yet.
    led(&[&changed], "saga").register(&shop.client).await.unwrap();
    let first = file(|text| text);
    led(&[&first], "saga").register(&shop.client).await.unwrap();
    started(&shop.client, "old", data.clone()).await.unwrap();
    assert!(payload(&shop, "old:order:pay").await.contains("eur"));
    let refused = led(&[&changed], "saga").register(&shop.client).await.unwrap_err();
    let said = oncebox_connect::error::error_chain(&refused);
    assert!(said.contains("has 1 in flight") && said.contains("new version"), "{said}");
    let elsewhere = led(&[&first], "another").register(&shop.client).await;
    assert!(elsewhere.is_err(), "another orchestrator would start sagas that nobody leads");

    let second = file(|text| text.replace("\"eur\"", "\"usd\"").replace("version = 1", "version = 2"));
    let both = led(&[&first, &second], "saga");
    both.check(&shop.client).await.unwrap();
    started(&shop.client, "new", data.clone()).await.unwrap();
    started_of(&shop.client, "kept", data, Some(1)).await.unwrap();
    assert!(payload(&shop, "new:order:pay").await.contains("usd"));
    assert!(payload(&shop, "kept:order:pay").await.contains("eur"));
    shop.orchestrator = both;
    for id in ["old", "new", "kept"] {
        assert!(is_handled(&shop.tell(&format!("{id}:order:pay"), "done").await), "{id}");
        assert_eq!(shop.sent(id).await, ["reserve", "pay", "notify"]);
    }
    // The file of the first version is removed: its sagas wait, and nothing else does.
    shop.orchestrator = led(&[&second], "saga");
    shop.orchestrator.check(&shop.client).await.unwrap();
    assert!(!is_handled(&shop.tell("old:order:notify", "done").await));
    assert!(is_handled(&shop.tell("new:order:notify", "done").await));
}

/// A start that has not committed yet, of a file that is replaced meanwhile.
#[tokio::test]
async fn a_file_is_not_replaced_under_a_start() {
    let shop = shop().await;
    let (starting, applying) = (shop.env.pg().await, shop.env.pg().await);
    starting.batch_execute("BEGIN").await.unwrap();
    started(&starting, "o-1", json!({"order": 17, "cents": 500})).await.unwrap();
    let changed = led(&[&file(|text| text.replace("\"eur\"", "\"usd\""))], "saga");
    let (refused, ()) = tokio::join!(changed.register(&applying), async {
        let waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
                     AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        oncebox_tests::eventually("the other waits", std::time::Duration::from_secs(20), async || {
            (shop.number(waits).await == 1).then_some(())
        })
        .await;
        starting.batch_execute("COMMIT").await.unwrap();
    });
    assert!(refused.is_err());
}

/// A producer starts sagas, and sees nothing of them.
#[tokio::test]
async fn a_producer_may_start_sagas_and_read_none() {
    let shop = shop().await;
    let producer = as_role(&shop.env, "oncebox_producer").await;
    started(&producer, "o-1", json!({"order": 17, "cents": 500})).await.unwrap();
    for table in ["saga", "saga_step", "saga_definition"] {
        let refused = producer.query(&format!("SELECT * FROM oncebox.{table}"), &[]).await.unwrap_err();
        assert_eq!(code(&refused), "42501", "{table}");
    }
    let forged = "SELECT oncebox.register_saga('0', 'order', 1, '[]')";
    assert_eq!(code(&producer.query(forged, &[]).await.unwrap_err()), "42501");
    let consumer = as_role(&shop.env, "oncebox_consumer").await;
    shop.orchestrator.check(&consumer).await.unwrap();
}

async fn as_role(env: &TestEnv, role: &str) -> Client {
    let client = env.pg().await;
    client.batch_execute(&format!("SET ROLE {role}")).await.unwrap();
    client
}
