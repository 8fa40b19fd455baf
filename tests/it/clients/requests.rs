//! The same scenarios as requests with an `Idempotency-Key`, whose handlers do as the body says.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Extension, Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::post,
};
use futures_util::{StreamExt as _, stream};
use oncebox_http::{Claim, IdempotencyLayer, KeepWrites};
use oncebox_inbox::Outcome;
use oncebox_tests::{TestEnv, pool};
use serde_json::Value;
use tokio::net::TcpListener;

use super::{
    conformance::{TABLES, ended},
    inbox::spoiled,
    scenarios::{Column, Ends, Sent, returns, sent_to},
    told::{AsTold, Reply, Told},
};
use crate::http::support::{self, request, send};

/// How often a client repeats a request that has no outcome.
const ATTEMPTS: usize = 3;
const AFTERWARDS: usize = 24;

/// A client's response.
#[derive(Debug)]
struct Got {
    /// Without the answers that another attempt is at work.
    statuses: Vec<u16>,
    /// Of one more repetition, with the header that tells a stored response, or else its title.
    again: Option<(u16, String)>,
}

async fn act(State(told): State<Arc<AsTold>>, claim: Claim, body: String) -> Response {
    let order: Told = serde_json::from_str(&body).unwrap();
    let json = |reply: Option<Reply>| serde_json::to_string(&reply);
    match told.handle(&order, 1, claim.transaction()).await {
        Ok(Outcome::Done(reply)) => match json(reply) {
            Ok(body) => body.into_response(),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        },
        Ok(Outcome::Reject(reply)) => {
            (StatusCode::PAYMENT_REQUIRED, Extension(KeepWrites), json(reply).unwrap()).into_response()
        }
        Ok(Outcome::Dead(reason)) => (StatusCode::UNPROCESSABLE_ENTITY, reason).into_response(),
        Ok(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn serve(env: &TestEnv, settings: &str) -> SocketAddr {
    let url = if settings == "spoiled" { spoiled(env.database_url()) } else { env.database_url().to_owned() };
    let layer = IdempotencyLayer::builder(pool(&url, 4, Duration::from_secs(10)).unwrap())
        .scope("conform")
        .single_tenant()
        .handler_timeout(Duration::from_secs(5));
    let router = Router::new().route("/told", post(act)).route_layer(layer.build().unwrap());
    let router = router.with_state(Arc::new(AsTold::new(env).await));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    env.keep(async move { axum::serve(listener, router).await.unwrap() });
    address
}

/// Repeats a request until it has an outcome, and then once more.
async fn get(address: SocketAddr, sent: &Sent) -> Got {
    let ask = async || {
        let order = request("POST", "/told", &[("idempotency-key", &sent.name)], &sent.payload.to_string());
        send(address, order).await
    };
    let mut statuses = Vec::new();
    loop {
        match ask().await.status {
            409 => {}
            status @ 500.. if statuses.len() + 1 < ATTEMPTS => statuses.push(status),
            status => {
                statuses.push(status);
                let again = if status < 500 { Some(ask().await) } else { None };
                let says = |reply: &support::Reply| match reply.replayed() {
                    "" => serde_json::from_str::<Value>(reply.text()).unwrap()["title"].to_string(),
                    replayed => replayed.to_owned(),
                };
                let again = again.map(|reply| (reply.status, says(&reply)));
                return Got { statuses, again };
            }
        }
    }
}

async fn conform(settings: &str) {
    let env = TestEnv::new().await;
    let postgres = env.pg().await;
    postgres.batch_execute(TABLES).await.unwrap();
    let address = serve(&env, settings).await;
    let (mut after, sent): (Vec<_>, Vec<_>) =
        sent_to(Column::Http).into_iter().partition(Sent::changes_its_session);
    after.extend((0..AFTERWARDS).map(|n| returns(&format!("after-{n}"))));
    let mut wrong = Vec::new();
    let mut again = 0;
    for part in [&sent, &after] {
        let all = stream::iter(part).map(async |sent| (sent, get(address, sent).await));
        for (sent, got) in all.buffer_unordered(3).collect::<Vec<_>>().await {
            let mut found = ended(&postgres, &sent.name, &sent.name).await;
            if std::ptr::eq(part, &raw const after) {
                again += found.runs.saturating_sub(1);
                found.runs = found.runs.min(1);
            }
            let (runs, effects, status, statuses, replay) = expected(sent.ends);
            let is_right = (found.runs, found.effects, found.status.as_deref()) == (runs, effects, status);
            let replay = replay.map(|(status, replayed)| (status, replayed.to_owned()));
            if !is_right || !statuses.contains(got.statuses.last().unwrap()) || got.again != replay {
                wrong.push(format!("{}: {got:?}, {found:?}", sent.name));
            }
        }
    }
    if again > Column::Http.runs_in_vain() {
        wrong.push(format!("{again} runs behind requests that have changed their session"));
    }
    assert!(wrong.is_empty(), "{settings}:\n{}", wrong.join("\n"));
}

/// Runs, effects and status of the row; the last response, and the one to a repeated request.
type Expected = (usize, usize, Option<&'static str>, &'static [u16], Option<(u16, &'static str)>);

fn expected(ends: Ends) -> Expected {
    match ends {
        Ends::Done(runs) => (runs, 1, Some("completed"), &[200], Some((200, "true"))),
        Ends::Rejected => (1, 1, Some("rejected"), &[402], Some((402, "true"))),
        Ends::Dead(_) => (1, 0, Some("rejected"), &[422], Some((422, "true"))),
        Ends::Fails(..) => (ATTEMPTS, 0, None, &[500, 503], None),
        // The repeated request is the second one already.
        Ends::Parted => {
            (1, 1, Some("completed"), &[410], Some((410, "\"A part of the request may be done\"")))
        }
        Ends::Unkept => (1, 1, Some("completed"), &[200], Some((410, "true"))),
        Ends::Recovers => unreachable!("it is sent to consumers only"),
        Ends::Never(reason) => unreachable!("it was not sent: {reason}"),
    }
}

#[tokio::test]
async fn plain() {
    conform("plain").await;
}

#[tokio::test]
async fn spoiled_settings() {
    conform("spoiled").await;
}
