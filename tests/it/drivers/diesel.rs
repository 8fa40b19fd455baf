//! Handlers and producers in transactions of diesel-async.

use diesel_async::{
    AsyncConnection as _, AsyncPgConnection, SimpleAsyncConnection as _,
    pooled_connection::{AsyncDieselConnectionManager, deadpool::Pool},
};
use oncebox_diesel::Diesel;
use oncebox_outbox::{Error, Message, Outbox};
use oncebox_tests::TestEnv;

use super::support;

type Failed = Box<dyn std::error::Error + Send + Sync>;

fn pool(env: &TestEnv) -> Pool<AsyncPgConnection> {
    Pool::builder(AsyncDieselConnectionManager::new(env.database_url())).max_size(4).build().unwrap()
}

/// Enqueues in a transaction with an effect, and commits, or rolls back.
async fn place(
    connection: &mut AsyncPgConnection,
    outbox: &Outbox,
    message: &Message,
    commits: bool,
) -> Result<Option<i64>, Failed> {
    connection
        .transaction(async |connection| {
            connection.batch_execute("INSERT INTO effect (key) VALUES ('k')").await?;
            let id = outbox.enqueue(&mut *connection, message).await?;
            if commits { Ok(id) } else { Err("rolled back".into()) }
        })
        .await
}

#[tokio::test]
async fn a_message_exists_if_and_only_if_its_transaction_commits() {
    let env = support::tables().await;
    let (pool, outbox) = (pool(&env), Outbox::default());
    let connection = &mut *pool.get().await.unwrap();
    let message = support::message("k:pay", "1");
    let rolled_back = place(connection, &outbox, &message, false).await.unwrap_err();
    assert_eq!(rolled_back.to_string(), "rolled back");
    assert!(support::enqueued(&env).await.is_empty());
    assert!(place(connection, &outbox, &message, true).await.unwrap().is_some());
    assert_eq!(place(connection, &outbox, &message, true).await.unwrap(), None, "the very same message");
    assert_eq!(support::enqueued(&env).await, ["k:pay 1 - {}"]);

    let other = support::message("k:pay", "2");
    let conflict = place(connection, &outbox, &other, true).await.unwrap_err();
    let conflict = conflict.downcast_ref::<Error>().unwrap();
    assert!(matches!(conflict, Error::Conflict { key, .. } if key.as_str() == "k:pay"), "{conflict:?}");
    let elsewhere = Outbox::new("nowhere".parse().unwrap());
    let missing = elsewhere.enqueue(connection, &message).await.unwrap_err();
    assert!(matches!(missing, Error::NotInstalled { .. }), "{missing:?}");
}

#[tokio::test]
async fn each_key_ends_as_its_handler_says() {
    let env = support::tables().await;
    support::each_key_ends_as_its_handler_says(&env, Diesel::from(pool(&env))).await;
}

#[tokio::test]
async fn what_cannot_be_handled_is_said() {
    let env = support::tables().await;
    support::what_cannot_be_handled_is_said(&env, Diesel::from(pool(&env))).await;
}

#[tokio::test]
async fn races_run_again_and_levels_hold() {
    let env = support::tables().await;
    support::races_run_again_and_levels_hold(&env, Diesel::from(pool(&env))).await;
}

#[tokio::test]
async fn killed_and_cut_off_each_effect_is_there_once() {
    support::killed_and_cut_off_each_effect_is_there_once("diesel").await;
}

#[tokio::test]
async fn batches_are_refused() {
    let env = support::tables().await;
    support::batches_are_refused(&env, Diesel::from(pool(&env))).await;
}

#[tokio::test]
async fn own_statements_have_deadlines() {
    let env = support::tables().await;
    let pool = async |url: String| {
        let manager = AsyncDieselConnectionManager::new(url);
        Diesel::from(Pool::builder(manager).max_size(1).build().unwrap())
    };
    support::own_statements_have_deadlines(&env, pool).await;
}
