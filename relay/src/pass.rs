//! The loops that deliver and that maintain.

mod acknowledgements;
mod budget;
mod checks;
mod demand;
mod held;
mod hot_key;
pub(crate) mod maintenance;
mod missing;
pub(crate) mod mover;
mod plan;
mod probes;
mod quiet;
mod reading;
pub(crate) mod recovery;
mod refused;
mod rounds;
mod runner;
mod standby;
mod steps;
pub(crate) mod unread;
pub(crate) mod worker;

pub use self::steps::{Claimed, Pass, Published, Settled};
pub(crate) use self::{budget::Budget, demand::Demand, held::HeldLanes, runner::Runner};
