//! The examples' settings from environment variables, their connections, and the signal to stop.

use std::time::Duration;

use anyhow::{Context, Result};
use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod, Runtime};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{Instant, sleep},
};
use tokio_postgres::NoTls;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a program waits at its start for the servers that it needs.
const START_MAX: Duration = Duration::from_secs(60);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// An environment variable; `None` when it is not set.
#[must_use]
pub fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

/// An environment variable that must be set.
///
/// # Errors
/// It is not.
pub fn required(name: &str) -> Result<String> {
    variable(name).with_context(|| format!("{name} is not set"))
}

/// The subject `SUBJECT_PREFIX` followed by `tail`. The prefix is empty by default; the demo sets
/// it, so that its subjects are its own on a shared nats-server.
#[must_use]
pub fn subject(tail: &str) -> String {
    format!("{}{tail}", variable("SUBJECT_PREFIX").unwrap_or_default())
}

/// A pool whose waits all have a deadline; by default deadpool waits for ever.
///
/// # Errors
/// The URL cannot be read.
pub fn pool(database_url: &str, size: usize) -> Result<Pool> {
    let mut config: tokio_postgres::Config = database_url.parse().context("read the database URL")?;
    config.connect_timeout(CONNECT_TIMEOUT);
    let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let pool = Pool::builder(Manager::from_config(config, NoTls, recycling))
        .max_size(size)
        .runtime(Runtime::Tokio1)
        .create_timeout(Some(CONNECT_TIMEOUT))
        .wait_timeout(Some(CONNECT_TIMEOUT))
        .build()?;
    Ok(pool)
}

/// Connects to the nats-server in `NATS_URL`, and waits for it while it starts.
///
/// # Errors
/// The variable is not set, or the server cannot be reached within a minute.
pub async fn nats() -> Result<async_nats::Client> {
    let url = required("NATS_URL")?;
    patiently("connect to NATS", async || Ok(async_nats::connect(&url).await?)).await
}

/// Tries something at the start of a program, when a server may still be starting or be away for a
/// moment. A failed attempt is repeated after a pause, and pauses grow, until a minute has passed.
/// After that minute the error is returned, so that a supervisor sees it.
///
/// # Errors
/// The error of the last attempt.
pub async fn patiently<T>(what: &str, attempt: impl AsyncFn() -> Result<T>) -> Result<T> {
    let (until, mut pause) = (Instant::now() + START_MAX, FIRST_PAUSE);
    loop {
        match attempt().await {
            Err(problem) if Instant::now() + pause < until => {
                tracing::warn!("{what}: failed, will retry in {pause:?}: {problem:#}");
            }
            ended => return ended.with_context(|| what.to_owned()),
        }
        sleep(pause).await;
        pause = PAUSE_MAX.min(pause * 2);
    }
}

/// Waits for SIGTERM or Ctrl-C; returns its name.
///
/// # Errors
/// Signals cannot be received.
pub async fn stop_signal() -> Result<&'static str> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = terminate.recv() => Ok("SIGTERM"),
        pressed = tokio::signal::ctrl_c() => pressed.map(|()| "Ctrl-C").map_err(Into::into),
    }
}
