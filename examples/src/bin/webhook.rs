//! The receiver of webhooks: `webhook ADDRESS`, such as `127.0.0.1:8080`; port 0 takes a free one.
//!
//! `DATABASE_URL` names a database with Oncebox (`oncebox migrate`) and the table of
//! `src/webhook/schema.sql`; the senders sign with `GITHUB_SECRET` and `STRIPE_SECRET`.

use anyhow::{Context, Result};
use oncebox_examples::{config, webhook};
use tokio::net::TcpListener;

const CONNECTIONS: usize = 8;

#[tokio::main]
#[expect(clippy::print_stdout, reason = "an example shows what it did")]
async fn main() -> Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let address = std::env::args().nth(1).context("usage: webhook ADDRESS")?;
    let pool = config::pool(&config::required("DATABASE_URL")?, CONNECTIONS)?;
    let secrets = (config::required("GITHUB_SECRET")?, config::required("STRIPE_SECRET")?);
    let router = webhook::router(pool, secrets.0, secrets.1)?;
    let listener = TcpListener::bind(&address).await.with_context(|| format!("listen on {address}"))?;
    println!("listening on {}", listener.local_addr()?);
    let stopped = async {
        if config::stop_signal().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    axum::serve(listener, router).with_graceful_shutdown(stopped).await.context("serve")
}
