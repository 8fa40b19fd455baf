//! A process that is suspended while its handler has written: its key comes free, another process
//! does the request, and the first has no effect when it is continued.

use std::time::Duration;

use axum::{Router, body::Body, http::Request, routing::post};
use oncebox_http::{Claim, IdempotencyLayer};
use oncebox_tests::{TestEnv, eventually};
use tower_service::Service;

use crate::{
    http::support::{Reply, reply},
    inbox::support::{effects, environment},
    saga::suspended::{Freeze, process},
};

const LIMIT: Duration = Duration::from_secs(30);
/// How long a handler may take. PostgreSQL allows its transaction five seconds more.
const HANDLER_MAX: Duration = Duration::from_secs(3);

fn service(env: &TestEnv, freeze: &Freeze) -> Router {
    let layer = IdempotencyLayer::builder(env.pool(2)).scope("shop").single_tenant();
    let layer = layer.handler_timeout(HANDLER_MAX).build().unwrap();
    let freeze = freeze.clone();
    let write = async move |claim: Claim| {
        let sql = "INSERT INTO effect (key, n, line) VALUES ($1, 7, '')";
        claim.transaction().execute(sql, &[&claim.key().as_str()]).await.unwrap();
        freeze.pass();
        "done"
    };
    Router::new().route("/orders", post(write)).route_layer(layer)
}

async fn call(router: &mut Router) -> Reply {
    let request = Request::post("/orders").header("idempotency-key", "k").body(Body::from("7")).unwrap();
    reply(router.call(request).await.unwrap()).await
}

#[tokio::test]
async fn a_request_in_a_suspended_process_is_done_by_another() {
    let env = environment().await;
    let (freeze, go_on) = Freeze::new();
    let mut router = service(&env, &freeze);
    let (answers, answer) = std::sync::mpsc::channel();
    let first = process(async move || answers.send(call(&mut router).await.status).unwrap());
    freeze.has_stopped().await;
    let mut other = service(&env, &freeze);
    let done = async || {
        let mut other = other.clone();
        let reply = call(&mut other).await;
        match reply.status {
            200 => Some(reply),
            status => {
                assert_eq!(status, 409, "{reply:?}");
                None
            }
        }
    };
    assert_eq!(eventually("another does it", LIMIT, done).await.replayed(), "false");
    assert_eq!(effects(&env).await, 1);
    go_on.send(()).unwrap();
    let ended = async || first.is_finished().then_some(());
    eventually("the first has gone on, and ended", LIMIT, ended).await;
    let told = answer.recv().unwrap();
    assert!([500, 503].contains(&told), "nobody is told that it was done there: {told}");
    assert_eq!((effects(&env).await, call(&mut other).await.replayed()), (1, "true"));
}
