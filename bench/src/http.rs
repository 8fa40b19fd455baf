//! The HTTP layer: how fast a repeated request is answered, and ten thousand of them at once.
//!
//! Replays come at 1,000 a second over 16 connections that stay open, to a server in this process;
//! every request asks for another one of 1,000 stored responses, so that nothing but the database
//! knows it. A request that is late does not delay the time of the next, and its own latency counts
//! from the moment at which it was due: a stall is seen by all requests that it meets. Beside them,
//! in turns of a second, as many requests go to a handler that has no layer before it and makes one
//! SELECT: if that takes longer now and then, the machine causes it. For the hot key ten thousand
//! requests with one new key are made at once, without sockets, whose handler takes 100 ms: the
//! time until the last has its answer, how often the handler ran, and how many connections of the
//! pool's 16 were ever opened.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, ensure};
use axum::{Router, body::Body, extract::State, http::StatusCode, routing::post};
use bytes::Bytes;
use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod};
use http_body_util::{BodyExt, Full};
use hyper::{Request, client::conn::http1::SendRequest};
use hyper_util::rt::TokioIo;
use oncebox_http::{Claim, IdempotencyLayer};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use tokio_postgres::NoTls;
use tower_service::Service;

use crate::{
    config::Config,
    report::Report,
    servers::Servers,
    statistics::{median, percentile},
};

const CLIENTS: usize = 16;
const CONNECTIONS: usize = 16;
const KEYS: usize = 1_000;
const INTERVAL: Duration = Duration::from_millis(1);
const TURN: Duration = Duration::from_secs(1);
/// For each round of the other measurements: a neighbour of this machine spoils the tail of one
/// round, not of most.
const ROUNDS: usize = 3;
const CROWD: usize = 10_000;
const HOT: Duration = Duration::from_millis(100);
/// The way of a request, and the sign of it in the answer: `idempotent-replayed` from the layer.
type Way = (&'static str, Option<&'static str>);
const FIRSTS: Way = ("/orders", Some("false"));
const REPLAYS: Way = ("/orders", Some("true"));
const BARE: Way = ("/bare", None);
const EFFECT: &str = include_str!("sql/effect.sql");
const LOOK: &str = include_str!("sql/look.sql");

/// Takes all rounds.
pub(crate) async fn measure(servers: &Servers, config: &Config, report: &mut Report) -> anyhow::Result<()> {
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS * config.rounds {
        let round = Round::take(servers, config.duration / 10).await?;
        tracing::info!(
            "http: replay p50 {:.2} ms, p99 {:.2} ms; bare p50 {:.2} ms, p99 {:.2} ms; hot key: {:.2} s, {} runs, \
             {} connections",
            round.p50,
            round.p99,
            round.bare_p50,
            round.bare_p99,
            round.hot.seconds,
            round.hot.runs,
            round.hot.connections
        );
        rounds.push(round);
    }
    let median_of = |value: fn(&Round) -> f64| median(rounds.iter().map(value));
    let p50 = median_of(|round| round.p50);
    let first = median_of(|round| round.first_p50);
    let (bare_p50, bare_p99) = (median_of(|round| round.bare_p50), median_of(|round| round.bare_p99));
    let behind = format!("p50 {p50:.2}; one SELECT, no layer: p50 {bare_p50:.2}, p99 {bare_p99:.2}");
    report.add("http_replay_p99_ms", median_of(|round| round.p99), behind);
    report.detail("http_replay_p50_ms", p50);
    report.detail("http_bare_p50_ms", bare_p50);
    report.detail("http_bare_p99_ms", bare_p99);
    report.detail("http_first_p50_ms", first);
    let seconds = median_of(|round| round.hot.seconds);
    report.add("http_hot_key_seconds", seconds, format!("the handler takes {HOT:?}"));
    report.add("http_hot_key_runs", median_of(|round| round.hot.runs), "of the handler".to_owned());
    let of = format!("ever opened, of {CONNECTIONS}");
    report.add("http_hot_key_connections", median_of(|round| round.hot.connections), of);
    Ok(())
}

/// Times in milliseconds where not said otherwise.
struct Round {
    first_p50: f64,
    p50: f64,
    p99: f64,
    bare_p50: f64,
    bare_p99: f64,
    hot: Hot,
}

struct Hot {
    seconds: f64,
    runs: f64,
    connections: f64,
}

impl Round {
    async fn take(servers: &Servers, length: Duration) -> anyhow::Result<Self> {
        let database = servers.migrated().await?;
        let session = servers.session(&database).await?;
        session.batch_execute(include_str!("sql/effect_table.sql")).await?;
        let shop = Shop::open(&servers.database_url(&database)).await?;
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(Client::connect(shop.address).await?);
        }
        let mut firsts = Vec::with_capacity(KEYS);
        for key in 0..KEYS {
            let began = Instant::now();
            clients[key % CLIENTS].send(FIRSTS, key).await?;
            firsts.push(began.elapsed());
        }
        let (latencies, bare) = turns(&mut clients, length).await?;
        drop((clients, shop));
        // This one has a pool of its own, since the one above has opened its connections already.
        let hot = hot(Shop::open(&servers.database_url(&database)).await?).await?;
        let count = session.query_one("SELECT count(*) FROM effect", &[]).await?.get::<_, i64>(0);
        ensure!(usize::try_from(count)? == KEYS + 1, "{count} effects instead of {}", KEYS + 1);
        drop(session);
        servers.drop_database(&database).await?;
        let milliseconds = |durations: Vec<Duration>| {
            let mut sorted: Vec<f64> =
                durations.iter().map(|duration| duration.as_secs_f64() * 1e3).collect();
            sorted.sort_by(f64::total_cmp);
            sorted
        };
        let (firsts, latencies, bare) = (milliseconds(firsts), milliseconds(latencies), milliseconds(bare));
        Ok(Self {
            first_p50: percentile(&firsts, 50),
            p50: percentile(&latencies, 50),
            p99: percentile(&latencies, 99),
            bare_p50: percentile(&bare, 50),
            bare_p99: percentile(&bare, 99),
            hot,
        })
    }
}

/// Replays, and requests without the layer, in turns of a second. Those of the first are not
/// counted: with them the pool opens its connections, which no request meets again.
async fn turns(
    clients: &mut Vec<Client>,
    length: Duration,
) -> anyhow::Result<(Vec<Duration>, Vec<Duration>)> {
    let (mut replays, mut bare) = (Vec::new(), Vec::new());
    turn(clients, REPLAYS).await?;
    turn(clients, BARE).await?;
    for _ in 0..length.as_secs().max(1) {
        replays.extend(turn(clients, REPLAYS).await?);
        bare.extend(turn(clients, BARE).await?);
    }
    Ok((replays, bare))
}

/// Request n is due n intervals after the start; the clients take turns.
async fn turn(clients: &mut Vec<Client>, way: Way) -> anyhow::Result<Vec<Duration>> {
    let total = usize::try_from(TURN.as_micros() / INTERVAL.as_micros())?;
    let start = Instant::now() + Duration::from_millis(50);
    let mut tasks = JoinSet::new();
    for (number, mut client) in clients.drain(..).enumerate() {
        tasks.spawn(async move {
            let mut latencies = Vec::with_capacity(total / CLIENTS + 1);
            for request in (number..total).step_by(CLIENTS) {
                let due = start + INTERVAL * u32::try_from(request)?;
                let late = Instant::now() > due;
                sleep_until(due).await;
                // A timer of Tokio's fires up to a millisecond after its time, which is not the
                // server's doing.
                let from = if late { due } else { Instant::now() };
                client.send(way, request % KEYS).await?;
                latencies.push(from.elapsed());
            }
            anyhow::Ok((client, latencies))
        });
    }
    let mut latencies = Vec::with_capacity(total);
    while let Some(ended) = tasks.join_next().await {
        let (client, of_client) = ended.context("run a client")??;
        clients.push(client);
        latencies.extend(of_client);
    }
    Ok(latencies)
}

#[expect(clippy::cast_precision_loss, reason = "small counts")]
async fn hot(shop: Shop) -> anyhow::Result<Hot> {
    let runs = shop.handling.runs.load(Ordering::Relaxed);
    let began = Instant::now();
    let mut crowd = JoinSet::new();
    for _ in 0..CROWD {
        let mut router = shop.router.clone();
        crowd.spawn(async move {
            let Ok(response) = router.call(order("hot", "/hot")?.map(Body::new)).await;
            ensure!(response.status() == StatusCode::CREATED, "a request of the crowd got {response:?}");
            anyhow::Ok(response.into_body().collect().await?.to_bytes())
        });
    }
    while let Some(answer) = crowd.join_next().await {
        ensure!(answer??.as_ref() == b"done", "another answer");
    }
    let seconds = began.elapsed().as_secs_f64();
    let runs = (shop.handling.runs.load(Ordering::Relaxed) - runs) as f64;
    Ok(Hot { seconds, runs, connections: shop.pool.status().size as f64 })
}

/// A service whose handler writes one small row.
struct Shop {
    router: Router,
    pool: Pool,
    handling: Handling,
    address: SocketAddr,
    _serving: JoinSet<()>,
}

#[derive(Clone, Default)]
struct Handling {
    runs: Arc<AtomicU64>,
}

impl Shop {
    async fn open(database_url: &str) -> anyhow::Result<Self> {
        let fast = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = Manager::from_config(database_url.parse()?, NoTls, fast);
        let pool = Pool::builder(manager).max_size(CONNECTIONS).build().context("build the pool")?;
        let layer = IdempotencyLayer::builder(pool.clone())
            .scope("bench")
            .single_tenant()
            .in_flight_wait(Duration::from_secs(30))
            .build()?;
        let handling = Handling::default();
        let router = Router::new()
            .route("/orders", post(place))
            .route("/hot", post(place_slowly))
            .route_layer(layer)
            .with_state(handling.clone())
            .route("/bare", post(look).with_state(pool.clone()));
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let (mut serving, served) = (JoinSet::new(), router.clone());
        serving.spawn(async move {
            // A client that misses the server sees the error.
            let _ = axum::serve(listener, served).await;
        });
        Ok(Self { router, pool, handling, address, _serving: serving })
    }
}

async fn place(
    State(handling): State<Handling>,
    claim: Claim,
) -> Result<(StatusCode, &'static str), StatusCode> {
    handling.runs.fetch_add(1, Ordering::Relaxed);
    let failed = |_| StatusCode::INTERNAL_SERVER_ERROR;
    let statement = claim.transaction().prepare_cached(EFFECT).await.map_err(failed)?;
    claim.transaction().execute(&statement, &[&7_i64, &995_i64]).await.map_err(failed)?;
    Ok((StatusCode::CREATED, "done"))
}

/// The least work of a replay: a connection, and one look at a table by its key.
async fn look(State(pool): State<Pool>) -> Result<(StatusCode, &'static str), StatusCode> {
    let failed = |_| StatusCode::INTERNAL_SERVER_ERROR;
    let connection = pool.get().await.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    let statement = connection.prepare_cached(LOOK).await.map_err(failed)?;
    connection.query_opt(&statement, &[&1_i64]).await.map_err(failed)?;
    Ok((StatusCode::CREATED, "done"))
}

async fn place_slowly(
    state: State<Handling>,
    claim: Claim,
) -> Result<(StatusCode, &'static str), StatusCode> {
    sleep(HOT).await;
    place(state, claim).await
}

fn order(key: &str, path: &str) -> anyhow::Result<Request<Full<Bytes>>> {
    let request = Request::post(path).header("host", "bench").header("idempotency-key", key);
    Ok(request.body(Full::new(Bytes::from("x".repeat(256))))?)
}

/// One connection.
struct Client {
    sender: SendRequest<Full<Bytes>>,
    _connection: JoinSet<()>,
}

impl Client {
    async fn connect(address: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let mut task = JoinSet::new();
        task.spawn(async move {
            // The code that uses the sender gets the error.
            let _ = connection.await;
        });
        Ok(Self { sender, _connection: task })
    }

    /// Sends the request of a key, and checks that it was answered as it should be.
    async fn send(&mut self, (path, replayed): Way, key: usize) -> anyhow::Result<()> {
        self.sender.ready().await?;
        let response = self.sender.send_request(order(&format!("key-{key}"), path)?).await?;
        let found = response.headers().get("idempotent-replayed").and_then(|value| value.to_str().ok());
        let is_right = response.status() == StatusCode::CREATED && found == replayed;
        ensure!(is_right, "key {key}: {response:?}");
        ensure!(response.into_body().collect().await?.to_bytes().as_ref() == b"done", "another answer");
        Ok(())
    }
}
