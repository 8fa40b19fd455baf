//! Sagas: each order that is not dead is reserved, charged and shipped, or undone when the charge
//! is refused. Each process of this kind starts sagas, runs an orchestrator for the sagas of all
//! processes, and takes part in them.

use std::time::Duration;

use anyhow::{Context as _, Result};
use async_nats::jetstream;
use deadpool_postgres::Pool;
use oncebox_inbox::{Consumer, Context, Handler, HandlerError, Inbox, Outcome};
use oncebox_outbox::Outbox;
use oncebox_saga::{
    Action, Barrier, Compensation, Definition, InvalidDefinition, Orchestrator, Replier, Step,
};
use tokio_util::sync::CancellationToken;

use crate::{
    consume::ACK_WAIT,
    order::{COPIED, Order, STREAM},
};

/// The effects of the steps. It has no UNIQUE constraint, so that doubled effects are seen.
pub(crate) const TABLE: &str = "CREATE TABLE step_effect (id bigserial PRIMARY KEY, key text NOT NULL, step text NOT NULL, change int NOT NULL)";
/// The durable consumers: of orders, commands and answers.
pub(crate) const STARTING: &str = "saga-orders";
pub(crate) const TAKING_PART: &str = "saga-steps";
pub(crate) const LEADING: &str = "saga-replies";
pub(crate) const STEPS: [&str; 3] = ["reserve", "charge", "ship"];

const COMMANDS: &str = "chaos.steps.";
const REPLIES: &str = "chaos.replies";
/// No deadline ever passes: only the order decides how its saga ends.
const HOUR: Duration = Duration::from_secs(3_600);
/// Each death of a process costs the messages that it held one delivery.
const ATTEMPTS_MAX: u64 = 1_000;

fn definition() -> Result<Definition<Order>, InvalidDefinition> {
    let step = |name: &str| {
        Step::new(name, format!("{COMMANDS}{name}"), Order::clone).scope(TAKING_PART).deadline(HOUR)
    };
    let undone = |name: &str| step(name).compensation(format!("{COMMANDS}{name}"), Order::clone);
    let [reserve, charge, ship] = STEPS;
    Definition::builder("order", 1)
        .step(undone(reserve))
        .step(undone(charge))
        .step(step(ship).pivot())
        .deadline(HOUR)
        .build()
}

/// Starts a saga for each order.
struct Start {
    definition: Definition<Order>,
    orchestrator: Orchestrator,
}

impl Handler for Start {
    type Message = Order;
    type Reply = ();

    async fn handle(&self, cx: Context<'_>, order: Order) -> Result<Outcome<()>, HandlerError> {
        if !order.is_dead() {
            let (transaction, id) = (cx.transaction(), cx.key().as_str());
            self.orchestrator.start(transaction, &self.definition, id, &order).await?;
        }
        Ok(Outcome::done(()))
    }
}

/// Handles the commands of all steps: asks the barrier, writes the effect, and replies.
struct Participant {
    replier: Replier,
}

impl Handler for Participant {
    type Message = Order;
    type Reply = ();

    async fn handle(&self, cx: Context<'_>, order: Order) -> Result<Outcome<()>, HandlerError> {
        let step = cx.message().subject().trim_start_matches(COMMANDS);
        let barrier = Barrier::new(step)?;
        let outcome = if cx.key().is_undo() {
            if barrier.compensation(&cx).await? == Compensation::Undo {
                change(&cx, step, -1).await?;
            }
            Outcome::done(())
        } else {
            match barrier.action(&cx).await? {
                Action::Act if step == "charge" && order.is_declined() => {
                    barrier.had_no_effect(&cx).await?;
                    Outcome::reject(())
                }
                Action::Act => {
                    change(&cx, step, 1).await?;
                    Outcome::done(())
                }
                Action::Acted => Outcome::done(()),
                Action::Refused => Outcome::reject(()),
            }
        };
        self.replier.reply(&cx, &outcome).await?;
        Ok(outcome)
    }
}

async fn change(cx: &Context<'_>, step: &str, change: i32) -> Result<(), HandlerError> {
    let (key, _) = cx.key().as_str().split_once(':').unwrap_or_default();
    let sql = "INSERT INTO step_effect (key, step, change) VALUES ($1, $2, $3)";
    cx.transaction().execute(sql, &[&key, &step, &change]).await?;
    Ok(())
}

pub(crate) async fn run(
    pool: Pool,
    jetstream: jetstream::Context,
    shutdown: CancellationToken,
) -> Result<()> {
    let definition = definition()?;
    let orchestrator = Orchestrator::builder(REPLIES.parse()?).definition(&definition).build()?;
    let consumer = |durable: &str, filter: String| {
        let consumer = Consumer::new(jetstream.clone(), STREAM, durable).filter_subject(filter);
        consumer.ack_wait(ACK_WAIT).concurrency(4)
    };
    let inbox = |scope: &str| {
        let inbox = Inbox::builder(pool.clone()).scope(scope).single_tenant().attempts_max(ATTEMPTS_MAX);
        inbox.backoff(Duration::from_millis(50), Duration::from_secs(1)).build()
    };
    let (orders, commands) =
        (consumer(STARTING, format!("{COPIED}placed")), consumer(TAKING_PART, format!("{COMMANDS}>")));
    let replies = consumer(LEADING, REPLIES.to_owned());
    let participant = Participant { replier: Replier::new(Outbox::default(), [REPLIES]) };
    let starting = orders.run(
        inbox(STARTING)?,
        Start { definition, orchestrator: orchestrator.clone() },
        shutdown.clone(),
    );
    let taking_part = commands.run(inbox(TAKING_PART)?, participant, shutdown.clone());
    let leading = Box::pin(orchestrator.run(pool.clone(), replies, None, shutdown));
    tokio::try_join!(
        async { starting.await.context("start sagas") },
        async { taking_part.await.context("take part in sagas") },
        async { leading.await.context("lead sagas") },
    )?;
    Ok(())
}
