//! The payment gateway as a process, until SIGTERM or Ctrl-C. `GATEWAY_LISTEN` is its address.
//! It has no address by default: where another program has the port, requests would go there.

use std::sync::Arc;

use anyhow::{Context, Result};
use oncebox_examples::{
    config,
    gateway::{Gateway, router},
};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<()> {
    let address = config::required("GATEWAY_LISTEN")?;
    let listener = TcpListener::bind(&address).await.with_context(|| format!("listen on {address}"))?;
    let serving = axum::serve(listener, router(Arc::new(Gateway::default())));
    tokio::select! {
        served = serving => served.context("serve")?,
        stopped = config::stop_signal() => drop(stopped?),
    }
    Ok(())
}
