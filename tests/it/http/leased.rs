//! The leased form of the HTTP layer: handlers with effects outside the database.
//!
//! An effect happens once per key, even if the response, the client or the process is lost; nothing
//! is open in the database while a handler calls.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::State,
    http::{HeaderMap, StatusCode},
    routing::post,
};
use oncebox_http::{Claim, IdempotencyLayer, LeasedClaim};
use oncebox_inbox::{CallError, Reconciled};
use oncebox_tests::{TestEnv, eventually};
use tokio::{net::TcpListener, sync::Notify, task::JoinSet};
use tower_service::Service;

use crate::{
    http::support::{LIMIT, Reply, order, request, send},
    inbox::support::{count, environment},
};

const LEASE: Duration = Duration::from_millis(600);

/// A handler, and the other system that it calls.
#[derive(Clone, Default)]
pub(crate) struct Till {
    /// How often which key was charged.
    charged: Arc<Mutex<BTreeMap<String, u32>>>,
    runs: Arc<AtomicU64>,
    entered: Arc<Notify>,
    leave: Arc<Notify>,
}

impl Till {
    fn router(&self, layer: &IdempotencyLayer) -> Router {
        let wrong = async |_: Claim| "never";
        Router::new()
            .route("/orders", post(pay))
            .route("/wrong", post(wrong))
            .route_layer(layer.clone())
            .with_state(self.clone())
    }

    fn charges(&self) -> Vec<(String, u32)> {
        self.charged.lock().unwrap().clone().into_iter().collect()
    }

    pub(crate) fn runs(&self) -> u64 {
        self.runs.load(Ordering::SeqCst)
    }
}

/// Charges, books, and then does as it is told by `x-do`: in its first run only.
async fn pay(
    State(till): State<Till>,
    claim: LeasedClaim,
    headers: HeaderMap,
    body: String,
) -> Result<(StatusCode, String), StatusCode> {
    let run = till.runs.fetch_add(1, Ordering::SeqCst) + 1;
    let receipt: String = claim
        .effect("charge")
        .call(|key| async move {
            let count =
                *till.charged.lock().unwrap().entry(key.to_string()).and_modify(|n| *n += 1).or_insert(1);
            Ok::<_, CallError>(format!("receipt {count} of {key} for {body}"))
        })
        .reconcile(|_| async { Ok(Reconciled::Unknown) })
        .await
        .map_err(|_| StatusCode::BAD_GATEWAY)?;
    let tenant = claim.tenant().to_owned();
    let booked = claim.write("book", |transaction| {
        Box::pin(async move {
            let sql = "INSERT INTO effect (key, line) VALUES ('booked', $1)";
            Ok(transaction.execute(sql, &[&tenant]).await?)
        })
    });
    booked.await.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    let what = headers.get("x-do").map_or("", |value| value.to_str().unwrap());
    match what {
        "fails" if run == 1 => Err(StatusCode::INTERNAL_SERVER_ERROR),
        "panics" if run == 1 => panic!("this handler panics"),
        "wait" if run == 1 => {
            till.entered.notify_one();
            till.leave.notified().await;
            Ok((StatusCode::CREATED, receipt))
        }
        _ => Ok((StatusCode::CREATED, receipt)),
    }
}

fn layer(env: &TestEnv, connections: usize) -> IdempotencyLayer {
    let builder =
        IdempotencyLayer::builder(env.pool(connections)).scope("shop").tenant(|_| Some("main".to_owned()));
    builder.leased(LEASE).in_flight_wait(Duration::from_millis(100)).build().unwrap()
}

async fn serve(env: &TestEnv, router: Router) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    env.keep(async move { axum::serve(listener, router).await.unwrap() });
    address
}

pub(crate) async fn shop() -> (TestEnv, Till, SocketAddr, IdempotencyLayer) {
    let env = environment().await;
    let (till, layer) = (Till::default(), layer(&env, 4));
    let address = serve(&env, till.router(&layer)).await;
    (env, till, address, layer)
}

async fn rows(env: &TestEnv) -> [i64; 3] {
    let tables = ["effect", "oncebox.inbox", "oncebox.inbox_claim"];
    [count(env, tables[0]).await, count(env, tables[1]).await, count(env, tables[2]).await]
}

#[tokio::test]
async fn an_effect_happens_once_and_its_response_is_replayed() {
    let (env, till, address, layer) = shop().await;
    let first = send(address, order("k", 7, "")).await;
    assert_eq!((first.status, first.text()), (201, "receipt 1 of main/k:charge for 7"));
    assert_eq!(first.replayed(), "false");
    for _ in 0..3 {
        let again = send(address, order("k", 7, "")).await;
        assert_eq!((again.status, again.replayed(), &again.body), (201, "true", &first.body));
    }
    assert_eq!(send(address, order("k", 8, "")).await.problem(), "key-reused");
    assert_eq!(
        (till.runs(), till.charges(), rows(&env).await),
        (1, vec![("main/k:charge".to_owned(), 1)], [1, 1, 0])
    );
    let counts = layer.counts();
    assert_eq!((counts.handled, counts.replayed, counts.mismatched), (1, 3, 1));
    let wrong = request("POST", "/wrong", &[("idempotency-key", "k")], "");
    assert_eq!(send(address, wrong).await.problem(), "set-up-wrongly");
}

/// A failure after the effect gives the key up and remembers the effect.
#[tokio::test]
async fn the_next_attempt_goes_on_after_the_last_effect() {
    for (what, status) in [("fails", 500), ("panics", 500)] {
        let (env, till, address, _layer) = shop().await;
        let failed = send(address, order("k", 7, what)).await;
        assert_eq!((failed.status, rows(&env).await), (status, [1, 0, 1]), "{what}");
        let done = eventually("the key is free", LIMIT, async || {
            let reply = send(address, order("k", 7, what)).await;
            (reply.status != 409).then_some(reply)
        });
        assert_eq!(done.await.text(), "receipt 1 of main/k:charge for 7");
        let charges = vec![("main/k:charge".to_owned(), 1)];
        assert_eq!((till.runs(), till.charges(), rows(&env).await), (2, charges, [1, 1, 0]), "{what}");
    }
}

/// No transaction, and no connection.
#[tokio::test]
async fn nothing_is_open_in_the_database_while_a_handler_runs() {
    let (env, till, address, _layer) = shop().await;
    let mut first = JoinSet::new();
    first.spawn(send(address, order("k", 7, "wait")));
    till.entered.notified().await;
    // Longer than a lease, which is renewed, in a transaction of a moment.
    tokio::time::sleep(LEASE * 2).await;
    let sql =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'
               AND xact_start < clock_timestamp() - interval '200 ms'";
    assert_eq!(env.pg().await.query_one(sql, &[]).await.unwrap().get::<_, i64>(0), 0);
    let copy = send(address, order("k", 7, "wait")).await;
    assert_eq!((copy.status, copy.problem().as_str(), copy.header("retry-after")), (409, "in-flight", "1"));
    // Another process, which sees the claim and not the gate.
    let elsewhere = layer(&env, 1);
    let copy = in_process(&till.router(&elsewhere), order("k", 7, "wait")).await;
    assert_eq!(copy.problem(), "in-flight");
    assert_eq!(in_process(&till.router(&elsewhere), order("k", 8, "wait")).await.problem(), "key-reused");
    till.leave.notify_one();
    assert_eq!(first.join_next().await.unwrap().unwrap().status, 201);
    assert_eq!((till.runs(), rows(&env).await), (1, [1, 1, 0]));
}

/// A process that takes over repeats no effect that is known to have happened.
#[tokio::test]
async fn a_process_that_dies_leaves_the_key_to_the_next_one_after_its_lease() {
    let env = environment().await;
    let till = Till::default();
    let dying = till.router(&layer(&env, 1));
    let (entered, done) = (Arc::clone(&till.entered), Arc::new(Notify::new()));
    let (dead, ends) = (Arc::clone(&done), tokio::runtime::Handle::current());
    let process = std::thread::spawn(move || {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.spawn(async move { in_process(&dying, order("k", 7, "wait")).await });
        // With the runtime all of its tasks and connections end, wherever they are.
        ends.block_on(entered.notified());
        runtime.shutdown_timeout(LIMIT);
        dead.notify_one();
    });
    done.notified().await;
    process.join().unwrap();
    assert_eq!((till.runs(), rows(&env).await), (1, [1, 0, 1]));
    let next = layer(&env, 1);
    let router = till.router(&next);
    let reply = eventually("the lease has ended", LIMIT, async || {
        let reply = in_process(&router, order("k", 7, "wait")).await;
        (reply.status != 409).then_some(reply)
    });
    let reply = reply.await;
    assert_eq!((reply.status, reply.text()), (201, "receipt 1 of main/k:charge for 7"));
    assert_eq!((till.runs(), till.charges().len(), rows(&env).await), (2, 1, [1, 1, 0]));
    assert_eq!(next.counts().leases.taken_over, 1);
}

async fn in_process(
    router: &Router,
    request: axum::http::Request<http_body_util::Full<bytes::Bytes>>,
) -> Reply {
    match router.clone().call(request.map(Body::new)).await {
        Ok(response) => crate::http::support::reply(response).await,
    }
}
