//! The payment gateway as a process, until SIGTERM or Ctrl-C. `GATEWAY_LISTEN` is its address,
//! `127.0.0.1:8099` by default.

use std::sync::Arc;

use anyhow::{Context, Result};
use oncebox_examples::{
    config,
    gateway::{Gateway, router},
};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<()> {
    let address = config::variable("GATEWAY_LISTEN").unwrap_or_else(|| "127.0.0.1:8099".to_owned());
    let listener = TcpListener::bind(&address).await.with_context(|| format!("listen on {address}"))?;
    let serving = axum::serve(listener, router(Arc::new(Gateway::default())));
    tokio::select! {
        served = serving => served.context("serve")?,
        stopped = config::stop_signal() => drop(stopped?),
    }
    Ok(())
}
