//! The order service over HTTP: `shop ADDRESS`, such as `127.0.0.1:8080`; port 0 takes a free one.
//!
//! `DATABASE_URL` names a database with Oncebox (`oncebox migrate`) and the tables of
//! `src/order/schema.sql`.
//!
//! ```text
//! curl -i localhost:8080/orders -H 'Idempotency-Key: "4711"' -H 'Content-Type: application/json' \
//!      -d '{"customer": 7, "cents": 995}'
//! ```

use std::time::Duration;

use anyhow::{Context, Result};
use oncebox_examples::{config, shop};
use tokio::net::TcpListener;

const CONNECTIONS: usize = 8;
const DRAIN_LIMIT: Duration = Duration::from_secs(20);

#[tokio::main]
#[expect(clippy::print_stdout, reason = "an example shows what it did")]
async fn main() -> Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let address = std::env::args().nth(1).context("usage: shop ADDRESS")?;
    let pool = config::pool(&config::required("DATABASE_URL")?, CONNECTIONS)?;
    let (router, layer) = shop::router(pool, &config::subject("orders.placed"))?;
    layer.check().await?;
    let listener = TcpListener::bind(&address).await.with_context(|| format!("listen on {address}"))?;
    println!("listening on {}", listener.local_addr()?);
    let stopped = async {
        // Without signals there is nothing to wait for: serve until the process is killed.
        if config::stop_signal().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    axum::serve(listener, router).with_graceful_shutdown(stopped).await.context("serve")?;
    // Requests whose clients went away may still run.
    if layer.drain(DRAIN_LIMIT).await { Ok(()) } else { anyhow::bail!("requests were cut off") }
}
