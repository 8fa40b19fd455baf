//! The service, the client and the table that the tests of the HTTP layer share.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Extension, Router,
    body::Body,
    extract::{Path, State},
    http::{HeaderMap, Request, Response, StatusCode},
    response::IntoResponse,
    routing::post,
};
use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use oncebox_http::{Builder, Claim, IdempotencyLayer, KeepWrites};
use oncebox_outbox::{Message, Outbox};
use oncebox_tests::TestEnv;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Notify,
};

use crate::inbox::support::{count, environment};

pub(crate) const LIMIT: Duration = Duration::from_secs(90);

/// A service on loopback with the layer. The header `x-do` commands its handler. It is not part of
/// a request's fingerprint, so the same request can have another result when it is repeated.
pub(crate) struct Shop {
    pub(crate) env: TestEnv,
    pub(crate) layer: IdempotencyLayer,
    pub(crate) router: Router,
    pub(crate) address: SocketAddr,
    pub(crate) state: Handling,
}

/// The state of the handlers that a test can observe and control.
#[derive(Clone, Default)]
pub(crate) struct Handling {
    pub(crate) runs: Arc<AtomicU64>,
    /// Notified when a handler has begun to wait.
    pub(crate) entered: Arc<Notify>,
    /// Lets a waiting handler go on.
    pub(crate) leave: Arc<Notify>,
    /// Claims that handlers have kept.
    pub(crate) claims: Arc<Mutex<Vec<Claim>>>,
}

impl Shop {
    pub(crate) async fn open() -> Self {
        Self::with(|builder| builder).await
    }

    /// A shop with four connections, the tenant of the header `x-tenant` (or `main`), and the
    /// changes of the test.
    pub(crate) async fn with(change: impl FnOnce(Builder) -> Builder) -> Self {
        let env = environment().await;
        let builder = IdempotencyLayer::builder(env.pool(4));
        Self::on(env, change(builder)).await
    }

    /// A shop with this builder and its connections.
    pub(crate) async fn on(env: TestEnv, builder: Builder) -> Self {
        let layer = builder
            .scope("shop")
            .tenant(|parts| match parts.headers.get("x-tenant") {
                Some(tenant) => Some(tenant.to_str().ok()?.to_owned()),
                None => Some("main".to_owned()),
            })
            .build()
            .unwrap();
        let state = Handling::default();
        let router = Router::new()
            .route("/orders", post(act).get(read).put(act))
            .route("/orders/{id}/items", post(act_at))
            .route_layer(layer.clone())
            .with_state(state.clone());
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = router.clone();
        env.keep(async move { axum::serve(listener, serving).await.unwrap() });
        Self { env, layer, router, address, state }
    }

    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Reply {
        send(self.address, request).await
    }

    /// An order over its own connection.
    pub(crate) async fn order(&self, key: &str, n: i64, what: &str) -> Reply {
        self.send(order(key, n, what)).await
    }

    pub(crate) fn runs(&self) -> u64 {
        self.state.runs.load(Ordering::SeqCst)
    }

    pub(crate) async fn effects(&self) -> i64 {
        count(&self.env, "effect").await
    }

    pub(crate) async fn rows(&self) -> i64 {
        count(&self.env, "oncebox.inbox").await
    }
}

/// A response with its whole body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn replayed(&self) -> &str {
        self.header("idempotent-replayed")
    }

    /// The last part of the problem's type, after checks of the rest.
    pub(crate) fn problem(&self) -> String {
        assert_eq!(self.header("content-type"), "application/problem+json", "{self:?}");
        let problem: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(problem["status"], self.status);
        assert!(problem["title"].is_string() && problem["detail"].is_string());
        problem["type"].as_str().unwrap().strip_prefix("urn:oncebox:problem:").unwrap().to_owned()
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

pub(crate) fn order(key: &str, n: i64, what: &str) -> Request<Full<Bytes>> {
    request("POST", "/orders", &[("idempotency-key", key), ("x-do", what)], &n.to_string())
}

pub(crate) fn request(
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Request<Full<Bytes>> {
    let mut request = Request::builder().method(method).uri(path).header("host", "shop");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Full::new(Bytes::from(body.to_owned()))).unwrap()
}

/// Sends one request over a new connection, with a client that uses no code of the layer.
pub(crate) async fn send(address: SocketAddr, request: Request<Full<Bytes>>) -> Reply {
    let sending = async {
        let stream = TcpStream::connect(address).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        let answer = async {
            let reply = reply(sender.send_request(request).await.unwrap()).await;
            drop(sender);
            reply
        };
        let (reply, _) = tokio::join!(answer, connection);
        reply
    };
    tokio::time::timeout(LIMIT, sending).await.expect("an answer in time")
}

pub(crate) async fn reply<B>(response: Response<B>) -> Reply
where
    B: hyper::body::Body,
    B::Error: std::fmt::Debug,
{
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Reply { status: parts.status.as_u16(), headers: parts.headers, body }
}

async fn read() -> &'static str {
    "nothing"
}

async fn act_at(
    _: Path<String>,
    state: State<Handling>,
    claim: Claim,
    headers: HeaderMap,
    body: String,
) -> Response<Body> {
    act(state, Some(claim), headers, body).await
}

async fn act(
    State(handling): State<Handling>,
    claim: Option<Claim>,
    headers: HeaderMap,
    body: String,
) -> Response<Body> {
    handling.runs.fetch_add(1, Ordering::SeqCst);
    let Some(claim) = claim else { return "without a key".into_response() };
    let Ok(n) = body.parse::<i64>() else {
        return (StatusCode::BAD_REQUEST, format!("{body:?} is not a number")).into_response();
    };
    let what = headers.get("x-do").map_or("order", |value| value.to_str().unwrap());
    let (what, number) = what.split_once(':').unwrap_or((what, ""));
    if what == "fails-first" && handling.runs.load(Ordering::SeqCst) == 1 {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    let sql = "INSERT INTO effect (key, n, line) VALUES ($1, $2, $3) RETURNING id";
    let inserted = claim.transaction().query_one(sql, &[&claim.key().as_str(), &n, &claim.tenant()]).await;
    let id: i64 = inserted.unwrap().get(0);
    let status = |text: &str| StatusCode::from_u16(text.parse().unwrap()).unwrap();
    match what {
        "status" => {
            (status(number), format!("status {number} of run {}", handling.runs.load(Ordering::SeqCst)))
                .into_response()
        }
        "lost" => {
            let end = "SELECT pg_terminate_backend(pg_backend_pid())";
            assert!(claim.transaction().batch_execute(end).await.is_err());
            (status(number), "no money").into_response()
        }
        "keep" => (status(number), Extension(KeepWrites), "no money").into_response(),
        "panic" => panic!("this handler panics"),
        "swallow" => {
            let _ = claim.transaction().batch_execute("SELECT 1 / 0").await;
            created(id)
        }
        "restart" => {
            claim.transaction().batch_execute("ROLLBACK; BEGIN").await.unwrap();
            claim.transaction().query_one(sql, &[&claim.key().as_str(), &n, &claim.tenant()]).await.unwrap();
            created(id)
        }
        "commit" | "locked" => {
            let lock = "SELECT pg_advisory_xact_lock_shared(4711)";
            let text = if what == "commit" { "COMMIT" } else { lock };
            claim.transaction().batch_execute(text).await.unwrap();
            created(id)
        }
        "hold" => {
            handling.claims.lock().unwrap().push(claim);
            created(id)
        }
        "enqueue" => {
            let key = claim.key().step("pay").unwrap();
            let message = Message::bytes(key, "orders.placed".parse().unwrap(), body);
            Outbox::default().enqueue(claim.transaction(), &message).await.unwrap();
            created(id)
        }
        "wait" => {
            handling.entered.notify_one();
            handling.leave.notified().await;
            created(id)
        }
        "conflict" => {
            let race = "DO $$ BEGIN RAISE SQLSTATE '40001'; END $$";
            assert!(claim.transaction().batch_execute(race).await.is_err());
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
        "hang" => std::future::pending().await,
        "sleep" => {
            tokio::time::sleep(Duration::from_millis(number.parse().unwrap())).await;
            created(id)
        }
        _ => placed(id, what, number),
    }
}

/// The message that an order was placed.
fn placed(id: i64, what: &str, number: &str) -> Response<Body> {
    match what {
        "large" => {
            let large = "x".repeat(number.parse().unwrap());
            (StatusCode::CREATED, [("location", format!("/orders/{id}"))], large).into_response()
        }
        "encoded" => {
            let headers = [("content-encoding", "gzip"), ("content-language", "de")];
            (StatusCode::CREATED, headers, "as if packed").into_response()
        }
        "stream" => {
            let parts = ["one, ", "two, ", "three"].map(|part| Ok::<_, Infallible>(Bytes::from(part)));
            let headers = [("location", format!("/orders/{id}"))];
            (StatusCode::CREATED, headers, Body::from_stream(stream::iter(parts))).into_response()
        }
        _ => created(id),
    }
}

/// JSON with unusual blanks and numbers: if the layer parsed it and wrote it again, a test would
/// notice.
fn created(id: i64) -> Response<Body> {
    Response::builder()
        .status(StatusCode::CREATED)
        .header("content-type", "application/vnd.shop+json; v=1")
        .header("location", format!("/orders/{id}"))
        .header("etag", "W/\"1\"")
        .header("link", "</orders>; rel=\"collection\"")
        .header("link", "</>; rel=\"index\"")
        .header("x-request-id", uuid::Uuid::new_v4().to_string())
        .body(Body::from(format!("{{\"z\" : 1.0,\n\t\"id\":{id}, \"a\":\"\\u00e9\" }}\n")))
        .unwrap()
}
