//! The loops that deliver and that maintain.

pub(crate) mod acknowledgements;
mod bounds;
mod budget;
pub(crate) mod canary;
mod checks;
mod claim;
mod contracts;
mod demand;
pub(crate) mod history;
pub(crate) mod home;
mod hot_key;
pub(crate) mod idle;
pub(crate) mod maintenance;
mod missing;
pub(crate) mod mover;
mod plan;
mod publish;
mod quiet;
pub(crate) mod recovery;
mod rounds;
mod runner;
mod settle;
pub(crate) mod trace_file;
mod tries;
pub(crate) mod unread;
pub(crate) mod worker;

use std::time::Duration;

use tokio::time::timeout;

pub(crate) use self::{
    budget::{Budget, Common},
    demand::Demand,
    runner::Runner,
};
pub use self::{
    claim::Claimed,
    publish::Published,
    settle::{Pass, Settled},
};
use crate::error::{RelayError, StoreError};

/// The longest wait for an answer of PostgreSQL; `RelayError::PostgresTimeout` names it.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(45);

/// Every statement has a deadline of the server; this one is for a server that no longer answers.
pub(crate) async fn bounded<T>(step: impl Future<Output = Result<T, StoreError>>) -> Result<T, RelayError> {
    match timeout(ANSWER_MAX, step).await {
        Ok(result) => result.map_err(RelayError::store),
        Err(_) => Err(RelayError::PostgresTimeout),
    }
}
