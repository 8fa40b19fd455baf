//! The inbox can do the same over all drivers as over tokio-postgres: locks on entities, a message
//! that ends its process, dead letters on a subject, strict order, async closures; and HTTP
//! requests.

use std::time::Duration;

use axum::{Router, http::StatusCode, routing::post};
use diesel_async::{
    AsyncPgConnection,
    pooled_connection::{AsyncDieselConnectionManager, deadpool::Pool},
};
use oncebox_diesel::Diesel;
use oncebox_http::{Claim, IdempotencyLayer};
use oncebox_inbox::{Context, Exclusive, HandlerError, Inbox, Order, Outcome, Received, Verdict, handler_fn};
use oncebox_schema::{Driver, SchemaName, Value};
use oncebox_sea_orm::SeaOrm;
use oncebox_sqlx::Sqlx;
use oncebox_tests::{
    TestEnv,
    driven::{DEAD, Effect, Job, SCOPE, SLOW},
    eventually,
};
use sqlx::postgres::PgPoolOptions;
use tokio::{net::TcpListener, time::timeout};

use crate::{
    http::support::{order, send},
    inbox::{
        consumer::{Running, consumer, publish, settled},
        support::{LIMIT, count, effects, environment, stream_environment},
    },
};

const SHORT: Duration = Duration::from_millis(200);
const CONNECTIONS: u32 = 4;

pub(super) fn sqlx(env: &TestEnv) -> sqlx::PgPool {
    PgPoolOptions::new().max_connections(CONNECTIONS).connect_lazy(env.database_url()).unwrap()
}

pub(super) fn diesel(env: &TestEnv) -> Pool<AsyncPgConnection> {
    let manager = AsyncDieselConnectionManager::new(env.database_url());
    Pool::builder(manager).max_size(CONNECTIONS as usize).build().unwrap()
}

pub(super) fn inbox<D: Driver>(driver: D) -> Inbox<D> {
    let short = Duration::from_millis(1);
    let builder = Inbox::<D>::over(driver).scope(SCOPE).single_tenant().attempts_max(2);
    builder.backoff(short, short).lock_timeout(SHORT).build().unwrap()
}

pub(super) fn message(key: &str, n: i64) -> Received {
    Received::new("s.t", serde_json::to_vec(&Job { n }).unwrap()).header("Idempotency-Key", key)
}

/// A process dies in the handler again and again, with its transaction.
async fn a_message_that_ends_its_process_is_given_up<D: Exclusive>(env: &TestEnv, driver: D) {
    let (inbox, mut deliveries) = (inbox(driver), 0);
    let reason = eventually("it is given up", LIMIT, async || {
        deliveries += 1;
        let again = message("kills", SLOW).deliveries(deliveries);
        match timeout(SHORT, inbox.run(&Effect::<D>::new(), &again)).await {
            Ok(Ok(Verdict::Dead { reason })) => Some(reason),
            _ => None,
        }
    })
    .await;
    assert!(reason.contains("left no trace"), "{reason}");
    assert!((5..20).contains(&deliveries), "{deliveries}");
    assert_eq!(count(env, "oncebox.dead_letter").await, 1);
}

/// By a closure, which waits for a lock that another session has.
async fn a_locked_entity_is_waited_for<D: Exclusive>(env: &TestEnv, driver: D) {
    let inbox = inbox(driver);
    let handler = handler_fn("account:1", async |name: &&str, mut cx: Context<'_, D>, job: Job| {
        cx.lock([name]).await?;
        let values = [Value::Text(Some("locked")), Value::Integer(Some(job.n))];
        let insert = "INSERT INTO effect (key, n) VALUES ($1::text, $2::bigint)";
        D::query(D::connection(cx.transaction()), insert, &values, false).await?;
        Ok::<_, HandlerError>(Outcome::done(()))
    });
    let mut client = env.pg().await;
    let other = client.transaction().await.unwrap();
    oncebox_inbox::lock(&other, &SchemaName::default(), ["account:1"]).await.unwrap();
    let busy = inbox.run(&handler, &message("waits", 1)).await.unwrap();
    assert!(matches!(&busy, Verdict::Retry { reason, .. } if reason.contains("was not free")), "{busy:?}");
    other.rollback().await.unwrap();
    let handled = inbox.run(&handler, &message("waits", 1)).await.unwrap();
    assert!(matches!(handled, Verdict::Handled(_)), "{handled:?}");
    assert_eq!(effects(env).await, 1);
}

/// The second of two processes takes over when the first ends, dead letters are published, and
/// later messages wait for them.
async fn one_process_leads_and_publishes_dead_letters<D: Exclusive>(env: &TestEnv, driver: D) {
    let (jetstream, letters) = (env.jetstream().await, format!("letters.{}", env.name()));
    let (name, subjects) = (format!("{}-letters", env.name()), vec![letters.clone()]);
    let config = async_nats::jetstream::stream::Config { name, subjects, ..Default::default() };
    let mut stream = jetstream.create_stream(config).await.unwrap();
    let strict = async || consumer(env).await.order(Order::Strict).dead_letter_subject(&letters);
    let inboxes = [inbox(driver.clone()), inbox(driver)];
    let leader = Running::start(strict().await, inboxes[0].clone(), Effect::<D>::new());
    for n in 0..5 {
        publish(&jetstream, env.subject("s"), &format!("k{n}"), n, Some("line")).await;
    }
    publish(&jetstream, env.subject("s"), "dead", DEAD, Some("line")).await;
    settled(env).await;
    let standby = Running::start(strict().await, inboxes[1].clone(), Effect::<D>::new());
    for n in 5..10 {
        publish(&jetstream, env.subject("s"), &format!("k{n}"), n, Some("line")).await;
    }
    settled(env).await;
    assert_eq!(count(env, "oncebox.inbox_behind").await, 5, "they wait behind the dead letter");
    let discard = "SELECT oncebox.discard_letters(ARRAY(SELECT id FROM oncebox.dead_letter), 'mina', NULL)";
    env.pg().await.batch_execute(discard).await.unwrap();
    let handled = || inboxes.each_ref().map(|inbox| inbox.counts().handled);
    eventually("the leader runs them, and the second stands by", LIMIT, async || {
        (handled() == [10, 0]).then_some(())
    })
    .await;
    leader.stop().await;
    publish(&jetstream, env.subject("s"), "last", 10, Some("line")).await;
    settled(env).await;
    standby.stop().await;
    assert_eq!(inboxes.each_ref().map(|inbox| inbox.counts().handled), [10, 1]);
    let sql = "SELECT coalesce(array_agg(n ORDER BY ctid), '{}') FROM effect WHERE key LIKE 'k%'";
    let order: Vec<i64> = env.pg().await.query_one(sql, &[]).await.unwrap().get(0);
    assert_eq!(order, (0..10).collect::<Vec<_>>());
    assert_eq!(stream.info().await.unwrap().state.messages, 1, "the dead letter");
}

async fn parity<D: Exclusive>(driver: impl Fn(&TestEnv) -> D) {
    let env = environment().await;
    a_message_that_ends_its_process_is_given_up(&env, driver(&env)).await;
    let env = environment().await;
    a_locked_entity_is_waited_for(&env, driver(&env)).await;
    let env = stream_environment().await;
    one_process_leads_and_publishes_dead_letters(&env, driver(&env)).await;
}

#[tokio::test]
async fn sqlx_can_what_tokio_postgres_can() {
    parity(|env| Sqlx::from(sqlx(env))).await;
}

#[tokio::test]
async fn sea_orm_can_what_tokio_postgres_can() {
    parity(|env| SeaOrm::from(sea_orm::DatabaseConnection::from(sqlx(env)))).await;
}

#[tokio::test]
async fn diesel_can_what_tokio_postgres_can() {
    parity(|env| Diesel::from(diesel(env))).await;
}

/// Writes a row, and fails where it is told to.
async fn place<D: Driver>(mut claim: Claim<D>, headers: axum::http::HeaderMap) -> StatusCode {
    let insert = "INSERT INTO effect (key) VALUES ($1::text)";
    let key = claim.key().as_str().to_owned();
    let values = [Value::Text(Some(&key))];
    let written = D::query(D::connection(claim.transaction_mut()), insert, &values, false).await;
    match headers.get("x-do").and_then(|told| told.to_str().ok()) {
        Some("refuse") => StatusCode::CONFLICT,
        Some("deny") => StatusCode::UNPROCESSABLE_ENTITY,
        Some("break") => StatusCode::INTERNAL_SERVER_ERROR,
        _ if written.is_ok() => StatusCode::CREATED,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// A request is done once, a refusal is stored without its writes, and a failure leaves the key
/// free.
async fn requests_are_done_once<D: Exclusive>(driver: impl Fn(&TestEnv) -> D) {
    let env = environment().await;
    let layer = IdempotencyLayer::<D>::over(driver(&env)).scope("shop").single_tenant().build().unwrap();
    let router = Router::new().route("/orders", post(place::<D>)).route_layer(layer.clone());
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    env.keep(async move { axum::serve(listener, router).await.unwrap() });
    for (key, told, status, replayed, rows) in [
        ("a", "", 201, "false", 1),
        ("a", "", 201, "true", 1),
        ("b", "break", 500, "false", 1),
        ("b", "", 201, "false", 2),
        ("c", "deny", 422, "false", 2),
        ("c", "", 422, "true", 2),
    ] {
        let reply = send(address, order(key, 1, told)).await;
        assert_eq!((reply.status, reply.replayed()), (status, replayed), "{key} {told}: {reply:?}");
        assert_eq!(effects(&env).await, rows, "{key} {told}");
    }
    assert!(layer.drain(LIMIT).await);
}

#[tokio::test]
async fn requests_are_done_once_over_sqlx() {
    requests_are_done_once(|env| Sqlx::from(sqlx(env))).await;
}

#[tokio::test]
async fn requests_are_done_once_over_sea_orm() {
    requests_are_done_once(|env| SeaOrm::from(sea_orm::DatabaseConnection::from(sqlx(env)))).await;
}

#[tokio::test]
async fn requests_are_done_once_over_diesel() {
    requests_are_done_once(|env| Diesel::from(diesel(env))).await;
}
