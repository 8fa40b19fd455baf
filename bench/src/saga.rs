//! Sagas of three steps: how many a second, the cost of the orchestrator, the time of one, and
//! whether all that stays so beside many others.
//!
//! [`flow`] runs the whole of it: an orchestrator and a service that takes part, each with a
//! database and a relay of its own. [`cost`] compares the orchestrator's four transactions of a
//! saga with the same four written by hand, and with themselves in a table full of instances.

mod cost;
mod flow;
mod led;
mod peer;

use std::time::Duration;

use anyhow::Result;
use oncebox_saga::{Definition, InvalidDefinition, Step};
use serde::{Deserialize, Serialize};

use crate::{config::Config, report::Report, servers::Servers};

const STEPS: [&str; 3] = ["one", "two", "three"];
const REPLIES: &str = "bench.saga.replies";
/// The scope of the service that takes part.
const SCOPE: &str = "bench:steps";
const HOUR: Duration = Duration::from_secs(3_600);

/// The data of an instance, and of each command.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Order {
    customer: i64,
    cents: i64,
    note: String,
}

impl Order {
    fn new(customer: i64) -> Self {
        Self { customer, cents: 100, note: "x".repeat(100) }
    }
}

/// One step after another, each with a compensation but the last, which is the pivot.
fn definition() -> Result<Definition<Order>, InvalidDefinition> {
    let step = |name: &str| Step::new(name, subject(name), Order::clone).scope(SCOPE).deadline(HOUR);
    let undone = |name: &str| step(name).compensation(subject("undo"), Order::clone);
    let builder = Definition::builder("bench", 1).step(undone(STEPS[0])).step(undone(STEPS[1]));
    builder.step(step(STEPS[2]).pivot()).deadline(HOUR).build()
}

fn subject(name: &str) -> String {
    format!("bench.saga.steps.{name}")
}

/// Takes all rounds.
pub(crate) async fn measure(servers: &Servers, config: &Config, report: &mut Report) -> Result<()> {
    flow::measure(servers, config, report).await?;
    cost::measure(servers, config, report).await
}
