//! The loops that deliver and that maintain.

mod budget;
mod demand;
pub(crate) mod maintenance;
pub(crate) mod mover;
mod plan;
mod quiet;
mod runner;
mod steps;
pub(crate) mod worker;

pub use self::steps::{Claimed, Pass, Published, Settled};
pub(crate) use self::{budget::Budget, demand::Demand, runner::Runner};
