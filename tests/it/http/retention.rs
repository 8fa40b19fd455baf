//! Stored responses are kept for as long as they should be, and not for ever.

use std::time::Duration;

use oncebox_http::IdempotencyLayer;
use oncebox_tests::{TestEnv, eventually};

use crate::{
    http::{
        leased,
        support::{LIMIT, Shop, send},
    },
    inbox::support::count,
};

/// Time passes, for everything that is stored.
async fn pass(env: &TestEnv, hours: i32) {
    let sql = "UPDATE oncebox.inbox SET created_at = created_at - make_interval(hours => $1)";
    env.pg().await.execute(sql, &[&hours]).await.unwrap();
}

/// The retention that each route has registered.
async fn registered(env: &TestEnv) -> Vec<String> {
    let sql = "SELECT concat_ws(' ', scope, kind, retention_seconds) FROM oncebox.inbox_scope ORDER BY scope";
    env.pg().await.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

/// No process sweeps: only reads count.
async fn hold_the_sweep(env: &TestEnv) -> tokio_postgres::Client {
    let holder = env.pg().await;
    holder.batch_execute("BEGIN; SELECT FROM oncebox.inbox_sweep FOR UPDATE").await.unwrap();
    holder
}

/// For 24 hours by default, by the database's clock; afterwards it counts as new, whether it has
/// been deleted or not.
#[tokio::test]
async fn a_response_is_replayed_for_a_day() {
    let shop = Shop::open().await;
    let _holder = hold_the_sweep(&shop.env).await;
    let first = shop.order("k", 1, "").await;
    pass(&shop.env, 23).await;
    let again = shop.order("k", 1, "").await;
    assert_eq!((again.replayed(), &again.body), ("true", &first.body));
    assert_eq!(shop.order("k", 2, "").await.problem(), "key-reused");
    pass(&shop.env, 2).await;
    let other = shop.order("k", 2, "").await;
    assert_eq!((other.status, other.replayed()), (201, "false"), "another request: the old one is forgotten");
    assert_eq!((shop.runs(), shop.effects().await, shop.rows().await), (2, 2, 1));
}

/// The retention holds in the leased form too.
#[tokio::test]
async fn a_leased_response_is_replayed_for_a_day() {
    let (env, till, address, _layer) = leased::shop().await;
    let _holder = hold_the_sweep(&env).await;
    let ask = |n| send(address, crate::http::support::order("k", n, ""));
    ask(1).await;
    pass(&env, 23).await;
    assert_eq!((ask(1).await.replayed(), ask(2).await.problem().as_str()), ("true", "key-reused"));
    pass(&env, 2).await;
    let other = ask(2).await;
    assert_eq!(
        (other.status, other.replayed(), other.text()),
        (201, "false", "receipt 2 of main/k:charge for 2")
    );
    assert_eq!((till.runs(), count(&env, "oncebox.inbox").await), (2, 1));
}

/// A layer deletes old rows by itself, every route with its own retention; and it ends with a
/// drain.
#[tokio::test]
async fn old_responses_are_deleted_and_young_ones_are_not() {
    let shop = Shop::open().await;
    shop.order("old", 1, "").await;
    pass(&shop.env, 25).await;
    shop.order("young", 1, "").await;
    let due = "UPDATE oncebox.inbox_sweep SET finished_at = NULL; DELETE FROM oncebox.inbox_sweep_range";
    shop.env.pg().await.batch_execute(due).await.unwrap();
    let old = "oncebox.inbox WHERE key LIKE '%old'";
    eventually("it is gone", LIMIT, async || (count(&shop.env, old).await == 0).then_some(())).await;
    assert_eq!((shop.rows().await, shop.effects().await), (1, 2));
    assert_eq!(registered(&shop.env).await, ["shop POST /orders http 86400"]);
    assert!(shop.layer.drain(LIMIT).await, "the sweep does not hold a drain up");
    let problems =
        crate::relay::process::run(shop.env.database_url(), &["doctor", "--nats-url", shop.env.nats_url()])
            .await;
    assert!(!problems.1.contains("inbox-retention"), "no stream repeats a request: {}", problems.1);
}

#[tokio::test]
async fn responses_are_kept_for_ever_where_that_is_wanted() {
    let shop = Shop::with(|builder| builder.retention(None)).await;
    let first = shop.order("k", 1, "").await;
    pass(&shop.env, 24 * 3000).await;
    let registering = async || (registered(&shop.env).await == ["shop POST /orders http"]).then_some(());
    eventually("it says so", LIMIT, registering).await;
    assert_eq!(shop.order("k", 1, "").await.body, first.body);
    let layer = IdempotencyLayer::builder(shop.env.pool(1)).scope("s").single_tenant();
    let problem = layer.retention(Duration::from_millis(9)).build().unwrap_err().to_string();
    assert!(problem.contains("retention is not 1 second"), "{problem}");
}
