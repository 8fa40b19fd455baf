//! Handlers and producers in transactions of SeaORM.

use oncebox_outbox::{Error, Outbox};
use oncebox_sea_orm::SeaOrm;
use oncebox_tests::TestEnv;
use sea_orm::{ConnectOptions, ConnectionTrait as _, Database, DatabaseConnection, TransactionTrait as _};

use super::support;
use crate::relay::support::through_proxy;

async fn pool(env: &TestEnv) -> DatabaseConnection {
    let mut options = ConnectOptions::new(env.database_url());
    options.max_connections(4);
    Database::connect(options).await.unwrap()
}

#[tokio::test]
async fn a_message_exists_if_and_only_if_its_transaction_commits() {
    let env = support::tables().await;
    let (pool, outbox) = (pool(&env).await, Outbox::default());
    let message = support::message("k:pay", "1");
    let mut transaction = pool.begin().await.unwrap();
    assert!(outbox.enqueue(&mut transaction, &message).await.unwrap().is_some());
    transaction.rollback().await.unwrap();
    assert!(support::enqueued(&env).await.is_empty());

    let mut transaction = pool.begin().await.unwrap();
    transaction.execute_unprepared("INSERT INTO effect (key) VALUES ('k')").await.unwrap();
    assert!(outbox.enqueue(&mut transaction, &message).await.unwrap().is_some());
    assert_eq!(outbox.enqueue(&mut transaction, &message).await.unwrap(), None, "the very same message");
    transaction.commit().await.unwrap();
    assert_eq!(support::enqueued(&env).await, ["k:pay 1 - {}"]);

    let mut transaction = pool.begin().await.unwrap();
    let conflict = outbox.enqueue(&mut transaction, &support::message("k:pay", "2")).await.unwrap_err();
    assert!(matches!(&conflict, Error::Conflict { key, .. } if key.as_str() == "k:pay"), "{conflict:?}");
    drop(transaction);
    let mut transaction = pool.begin().await.unwrap();
    let elsewhere = Outbox::new("nowhere".parse().unwrap());
    let missing = elsewhere.enqueue(&mut transaction, &message).await.unwrap_err();
    assert!(matches!(missing, Error::NotInstalled { .. }), "{missing:?}");
}

#[tokio::test]
async fn each_key_ends_as_its_handler_says() {
    let env = support::tables().await;
    support::each_key_ends_as_its_handler_says(&env, SeaOrm::from(pool(&env).await)).await;
}

#[tokio::test]
async fn what_cannot_be_handled_is_said() {
    let env = support::tables().await;
    support::what_cannot_be_handled_is_said(&env, SeaOrm::from(pool(&env).await)).await;
}

#[tokio::test]
async fn races_run_again_and_levels_hold() {
    let env = support::tables().await;
    support::races_run_again_and_levels_hold(&env, SeaOrm::from(pool(&env).await)).await;
}

#[tokio::test]
async fn killed_and_cut_off_each_effect_is_there_once() {
    support::killed_and_cut_off_each_effect_is_there_once("SeaORM").await;
}

#[tokio::test]
async fn batches_are_refused() {
    let env = support::tables().await;
    support::batches_are_refused(&env, SeaOrm::from(pool(&env).await)).await;
}

#[tokio::test]
async fn own_statements_have_deadlines() {
    let env = support::tables().await;
    let pool = async |url: String| {
        let mut options = ConnectOptions::new(url);
        options.max_connections(1);
        SeaOrm::from(Database::connect(options).await.unwrap())
    };
    support::own_statements_have_deadlines(&env, pool).await;
}

#[tokio::test]
async fn a_late_begin_is_rolled_back() {
    let env = support::tables().await;
    let (proxy, url) = through_proxy(env.database_url()).await;
    let mut options = ConnectOptions::new(url);
    // Its question would take the time in which BEGIN is to be late.
    options.max_connections(1).test_before_acquire(false);
    let pool = Database::connect(options).await.unwrap();
    let insert = async {
        pool.execute_unprepared("INSERT INTO effect (key) VALUES ('later')").await.unwrap();
    };
    let (driver, idle) = (SeaOrm::from(pool.clone()), || pool.get_postgres_connection_pool().num_idle());
    support::a_late_begin_is_rolled_back(&env, &proxy, driver, idle, insert).await;
}
