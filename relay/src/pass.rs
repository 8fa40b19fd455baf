//! The loops that deliver and that maintain.

mod budget;
pub(crate) mod maintenance;
pub(crate) mod mover;
mod plan;
mod steps;
pub(crate) mod worker;

pub(crate) use budget::Budget;
pub use steps::{Claimed, Pass, Published, Settled};
