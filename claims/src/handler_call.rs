//! Calling the code of a user: within a limit of time, and safe from its panics.

use std::{any::Any, panic::AssertUnwindSafe};

use futures_util::FutureExt;
use tokio::time::{Instant, timeout_at};

/// How a call ended.
#[derive(Debug)]
pub enum CallEnd<T> {
    /// It returned.
    Returned(T),
    /// It panicked, with this text.
    Panicked(String),
    /// It was still running at its deadline, and was dropped.
    TimedOut,
}

/// Calls the code of a user, and drops its future at the deadline.
pub async fn call<T>(deadline: Instant, code: impl Future<Output = T>) -> CallEnd<T> {
    match timeout_at(deadline, AssertUnwindSafe(code).catch_unwind()).await {
        Ok(Ok(returned)) => CallEnd::Returned(returned),
        Ok(Err(panic)) => CallEnd::Panicked(panic_text(&*panic).to_owned()),
        Err(_) => CallEnd::TimedOut,
    }
}

/// The text of a panic.
#[must_use]
pub fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no text")
}
