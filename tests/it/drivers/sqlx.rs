//! Handlers and producers in transactions of sqlx.

use std::time::Duration;

use oncebox_inbox::HandlerError;
use oncebox_outbox::{Error, Outbox};
use oncebox_sqlx::Sqlx;
use oncebox_tests::TestEnv;
use sqlx::{PgPool, postgres::PgPoolOptions};

use super::support;
use crate::relay::support::through_proxy;

async fn pool(env: &TestEnv) -> PgPool {
    PgPoolOptions::new().max_connections(4).connect(env.database_url()).await.unwrap()
}

#[tokio::test]
async fn a_message_exists_if_and_only_if_its_transaction_commits() {
    let env = support::tables().await;
    let (pool, outbox) = (pool(&env).await, Outbox::default());
    let message = support::message("k:pay", "1").ordering_key("customer-7").header("tenant", "acme").unwrap();

    let mut transaction = pool.begin().await.unwrap();
    assert!(outbox.enqueue(&mut transaction, &message).await.unwrap().is_some());
    transaction.rollback().await.unwrap();
    assert!(support::enqueued(&env).await.is_empty());

    let mut connection = pool.acquire().await.unwrap();
    let mut transaction = sqlx::Connection::begin(&mut *connection).await.unwrap();
    sqlx::query("INSERT INTO effect (key) VALUES ('k')").execute(&mut *transaction).await.unwrap();
    assert!(outbox.enqueue(&mut transaction, &message).await.unwrap().is_some());
    assert_eq!(outbox.enqueue(&mut transaction, &message).await.unwrap(), None, "the very same message");
    let later = support::message("k:later", "2").delayed_by(Duration::from_secs(3600));
    assert!(outbox.enqueue(&mut transaction, &later).await.unwrap().is_some());
    transaction.commit().await.unwrap();
    assert_eq!(support::enqueued(&env).await, [r#"k:pay 1 customer-7 {"tenant": "acme"}"#, "k:later  - {}"]);
    let delayed = "SELECT key FROM oncebox.list_delayed('k', 10)";
    assert_eq!(env.pg().await.query_one(delayed, &[]).await.unwrap().get::<_, &str>(0), "k:later");

    let mut transaction = pool.begin().await.unwrap();
    let conflict = outbox.enqueue(&mut transaction, &support::message("k:pay", "2")).await.unwrap_err();
    assert!(matches!(&conflict, Error::Conflict { key, .. } if key.as_str() == "k:pay"), "{conflict:?}");
    assert!(conflict.to_string().contains("is already enqueued with another payload"), "{conflict}");
    // A handler can return it by `?`, and its transaction has failed with it.
    assert!(HandlerError::from(conflict).to_string().contains("already enqueued"));
    drop(transaction);
    let mut transaction = pool.begin().await.unwrap();
    let elsewhere = Outbox::new("nowhere".parse().unwrap());
    let missing = elsewhere.enqueue(&mut transaction, &message).await.unwrap_err();
    assert!(matches!(missing, Error::NotInstalled { .. }), "{missing:?}");
}

#[tokio::test]
async fn each_key_ends_as_its_handler_says() {
    let env = support::tables().await;
    support::each_key_ends_as_its_handler_says(&env, Sqlx::from(pool(&env).await)).await;
}

#[tokio::test]
async fn what_cannot_be_handled_is_said() {
    let env = support::tables().await;
    support::what_cannot_be_handled_is_said(&env, Sqlx::from(pool(&env).await)).await;
}

#[tokio::test]
async fn races_run_again_and_levels_hold() {
    let env = support::tables().await;
    support::races_run_again_and_levels_hold(&env, Sqlx::from(pool(&env).await)).await;
}

#[tokio::test]
async fn killed_and_cut_off_each_effect_is_there_once() {
    support::killed_and_cut_off_each_effect_is_there_once("sqlx").await;
}

#[tokio::test]
async fn batches_are_refused() {
    let env = support::tables().await;
    support::batches_are_refused(&env, Sqlx::from(pool(&env).await)).await;
}

#[tokio::test]
async fn own_statements_have_deadlines() {
    let env = support::tables().await;
    let pool =
        async |url: String| Sqlx::from(PgPoolOptions::new().max_connections(1).connect(&url).await.unwrap());
    support::own_statements_have_deadlines(&env, pool).await;
}

#[tokio::test]
async fn a_late_begin_is_rolled_back() {
    let env = support::tables().await;
    let (proxy, url) = through_proxy(env.database_url()).await;
    // Its question would take the time in which BEGIN is to be late.
    let options = PgPoolOptions::new().max_connections(1).test_before_acquire(false);
    let pool = options.connect(&url).await.unwrap();
    let insert = async {
        sqlx::query("INSERT INTO effect (key) VALUES ('later')").execute(&pool).await.unwrap();
    };
    let (driver, idle) = (Sqlx::from(pool.clone()), || pool.num_idle());
    support::a_late_begin_is_rolled_back(&env, &proxy, driver, idle, insert).await;
}
