//! The shop of the HTTP layer's tests, with the layer of each language and framework.

use std::{
    net::{SocketAddr, TcpListener},
    path::Path,
    process::Stdio,
    time::Duration,
};

use oncebox_http::IdempotencyLayer;
use oncebox_tests::{Program, Proxy, TestEnv, eventually, pool};
use tokio::{net::TcpStream, process::Command, time::timeout};
use tokio_postgres::Client;

use super::shop::{LIMIT, Programs, lines};
use crate::{
    http::support::{Reply, Shop, request, send},
    inbox::support::environment,
    relay::support::through_proxy,
};

/// How long a copy waits for the first request; and how long a handler may take: on a busy machine
/// a runtime that starts needs seconds.
const WAIT: Duration = Duration::from_secs(2);
const HANDLER: Duration = Duration::from_secs(8);
const BODY_MAX: usize = 1_000;
const DOCUMENTATION: &str = "https://shop.example/docs/idempotency";

pub(super) struct Site {
    pub(super) address: SocketAddr,
    pub(super) proxy: Proxy,
    pub(super) client: Client,
    /// The text with which it commits.
    pub(super) commit: &'static [u8],
    /// Whether it leaves odd methods to the layer.
    takes_any_method: bool,
    serving: Serving,
}

enum Serving {
    Here { _shop: Box<Shop> },
    Program(Box<(Program, TestEnv)>),
}

impl Site {
    /// `None` where there is no toolchain for it.
    pub(super) async fn open(client: &str, framework: &str) -> Option<Self> {
        let env = environment().await;
        let postgres = env.pg().await;
        postgres.batch_execute("CREATE SEQUENCE run").await.unwrap();
        let (proxy, url) = through_proxy(env.database_url()).await;
        let (address, commit, serving) = if client == "rust" {
            let builder = IdempotencyLayer::builder(pool(&url, 4, LIMIT).unwrap());
            let builder = builder.in_flight_wait(WAIT).handler_timeout(HANDLER).documentation(DOCUMENTATION);
            let builder = builder.request_body_max(BODY_MAX).response_body_max(BODY_MAX);
            let shop = Shop::on(env, builder).await;
            (shop.address, &b"CLOSE oncebox_claim"[..], Serving::Here { _shop: Box::new(shop) })
        } else {
            let programs = Programs::of(client)?;
            let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
            let settings = serde_json::json!({
                "request_body_max": BODY_MAX, "response_body_max": BODY_MAX, "documentation": DOCUMENTATION,
                "in_flight_wait": WAIT.as_secs_f64(), "handler_timeout": HANDLER.as_secs_f64(),
            });
            let environment =
                [("DATABASE_URL", url), ("PORT", port.to_string()), ("SETTINGS", settings.to_string())];
            let has_own = matches!(framework, "nest" | "hono");
            let file = programs.file(if has_own { "frameworks" } else { "serving" });
            let program = Program::start_file(&file, &[framework], &environment).await.unwrap();
            let address = SocketAddr::from(([127, 0, 0, 1], port));
            (address, programs.commit(), Serving::Program(Box::new((program, env))))
        };
        eventually("the shop listens", LIMIT, async || TcpStream::connect(address).await.ok()).await;
        let takes_any_method = client != "typescript";
        Some(Self { address, proxy, client: postgres, commit, takes_any_method, serving })
    }

    pub(super) async fn order(&self, key: &str, what: &str) -> Reply {
        self.post("/orders", &[("idempotency-key", key), ("x-do", what)], "7").await
    }

    pub(super) async fn post(&self, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        send(self.address, request("POST", path, headers, body)).await
    }

    /// The number of effects, and of rows with this key.
    pub(super) async fn count(&self, key: &str) -> [i64; 2] {
        let sql = "SELECT (SELECT count(*) FROM effect WHERE key = $1), (SELECT count(*) FROM oncebox.inbox WHERE key = $1)";
        let row = self.client.query_one(sql, &[&format!("main/{key}")]).await.unwrap();
        [row.get(0), row.get(1)]
    }

    /// Keeps handlers that are told to from going on.
    pub(super) async fn lock(&self) {
        self.client.batch_execute("SELECT pg_advisory_lock(4711)").await.unwrap();
    }

    pub(super) async fn unlock(&self) {
        self.client.batch_execute("SELECT pg_advisory_unlock(4711)").await.unwrap();
    }

    pub(super) async fn until_one_waits(&self) {
        let waits = "SELECT 'one' FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711 AND NOT granted";
        eventually("a handler waits", LIMIT, async || lines(&self.client, waits).await.pop()).await;
    }

    /// Runs a client in another language, and returns its complaint.
    pub(super) async fn says(&self, part: &str) -> Result<(), String> {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("it/http/conformance/client.py");
        let mut command = Command::new("python3");
        command.arg(file).arg(self.address.port().to_string()).arg(part);
        if !self.takes_any_method {
            command.arg("known-methods");
        }
        let running = command.stdin(Stdio::null()).kill_on_drop(true).output();
        let output = timeout(LIMIT, running).await.expect("the client ends in time").unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(()) } else { Err(format!("{part}: {said}")) }
    }

    pub(super) fn log(&self) -> String {
        match &self.serving {
            Serving::Program(program) => program.0.log(),
            Serving::Here { .. } => String::new(),
        }
    }

    /// The same shop in Rust, on the same database.
    pub(super) async fn beside(&self) -> Option<axum::Router> {
        let Serving::Program(program) = &self.serving else { return None };
        let env = &program.1;
        let layer = IdempotencyLayer::builder(env.pool(2)).scope("shop").tenant(|_| Some("main".to_owned()));
        let act = async |body: String| match body.parse::<i64>() {
            Ok(n) => (axum::http::StatusCode::CREATED, [("location", format!("/orders/{n}"))], "by Rust"),
            Err(_) => (axum::http::StatusCode::BAD_REQUEST, [("location", String::new())], "by Rust"),
        };
        let route = axum::routing::post(act);
        Some(axum::Router::new().route("/orders", route).route_layer(layer.build().unwrap()))
    }
}
