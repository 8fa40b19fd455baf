//! The order service as a process: `orders ADDRESS [--file]` takes orders over HTTP and leads them
//! through the participants, until SIGTERM or Ctrl-C. Run as many as you like. With `--file` the
//! file `src/fulfilment/order.toml` says how, else a definition in Rust.
//!
//! `DATABASE_URL` names a database with Oncebox (`oncebox migrate`); `NATS_URL`, `STREAM` and
//! `SUBJECT_PREFIX` say where the messages are.
//!
//! ```text
//! curl -i localhost:8080/orders -H 'Idempotency-Key: "4711"' -H 'Content-Type: application/json' \
//!      -d '{"item": "lamp", "count": 1, "cents": 995, "city": "Bremen"}'
//! ```

use std::{io::IsTerminal, time::Duration};

use anyhow::{Context, Result, bail};
use oncebox_examples::{
    config,
    fulfilment::orders::{self, Leading},
};
use oncebox_inbox::Consumer;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

const USAGE: &str = "usage: orders ADDRESS [--file]";
const CONCURRENCY: usize = 16;
const DRAIN_LIMIT: Duration = Duration::from_secs(20);

#[tokio::main]
async fn main() -> Result<()> {
    let filter = EnvFilter::new(config::variable("LOG").as_deref().unwrap_or("info"));
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours).init();
    let address = std::env::args().nth(1).context(USAGE)?;
    let url = config::required("DATABASE_URL")?;
    let leading = match std::env::args().nth(2).as_deref() {
        None => Leading::Code(orders::definition()?),
        Some("--file") => Leading::File(orders::file()?),
        Some(other) => bail!("{other:?}: {USAGE}"),
    };
    let orchestrator = orders::orchestrator(&leading)?;
    let (router, layer) = orders::router(config::pool(&url, 8)?, orchestrator.clone(), leading)?;
    layer.check().await?;

    let nats = config::nats().await?;
    let (jetstream, stream) = (async_nats::jetstream::new(nats), config::required("STREAM")?);
    let consumer = |durable: &str, subject: &str| {
        let consumer = Consumer::new(jetstream.clone(), &stream, durable);
        consumer.filter_subject(config::subject(subject)).concurrency(CONCURRENCY)
    };
    let shutdown = CancellationToken::new();
    let pool = config::pool(&url, 2 * CONCURRENCY + 1)?;
    let leading = config::patiently("lead sagas", async || {
        let replies = consumer("orders-replies", "fulfilment.replies");
        let dead_letters = consumer("orders-dead-letters", "dead.>");
        let pool = pool.clone();
        Ok(Box::pin(orchestrator.run(pool, replies, Some(dead_letters), shutdown.clone())).await?)
    });

    let listener = TcpListener::bind(&address).await.with_context(|| format!("listen on {address}"))?;
    let serving = axum::serve(listener, router).with_graceful_shutdown(shutdown.clone().cancelled_owned());
    let stopping = async {
        let name = config::stop_signal().await?;
        tracing::info!("stopping because of {name}");
        shutdown.cancel();
        anyhow::Ok(())
    };
    tokio::try_join!(Box::pin(leading), async { serving.await.context("serve") }, stopping)?;
    if layer.drain(DRAIN_LIMIT).await { Ok(()) } else { anyhow::bail!("requests were cut off") }
}
