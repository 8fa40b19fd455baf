//! A service of the order's flow as a process: `participant inventory|billing|shipping
//! [--choreography]`, until SIGTERM or Ctrl-C.
//!
//! It takes commands, `inventory.>` and so on, and answers them; or it reacts to the others'
//! events. `DATABASE_URL` names a database with Oncebox (`oncebox migrate`) and the service's
//! tables, those of `src/fulfilment/inventory/schema.sql` and so on; `NATS_URL`, `STREAM` and
//! `SUBJECT_PREFIX` say where the messages are, `GATEWAY` where billing's gateway is. Run as many
//! as you like. `LEASE_SECONDS` is how long a key of billing rests after its process died, 30 by
//! default.

use std::{io::IsTerminal, time::Duration};

use anyhow::{Context, Result, bail};
use futures_util::future::try_join_all;
use oncebox_examples::{
    cashier::Client,
    config,
    fulfilment::{
        billing::{self, Billing},
        choreography::{Reacting, TO_BILLING, TO_INVENTORY, TO_SHIPPING},
        inventory::{self, Inventory},
        shipping::{self, Shipping},
    },
};
use oncebox_inbox::{Consumer, Handler, Inbox, LeasedHandler};
use oncebox_outbox::Outbox;
use oncebox_saga::Replier;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

const CONCURRENCY: usize = 16;

#[tokio::main]
async fn main() -> Result<()> {
    let filter = EnvFilter::new(config::variable("LOG").as_deref().unwrap_or("info"));
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours).init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (name, reacts) = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [name] => (name, false),
        [name, "--choreography"] => (name, true),
        _ => bail!("usage: participant inventory|billing|shipping [--choreography]"),
    };
    let nats = config::nats().await?;
    let process = Process {
        jetstream: async_nats::jetstream::new(nats),
        stream: config::required("STREAM")?,
        name: name.to_owned(),
        shutdown: CancellationToken::new(),
    };
    let stopping = async {
        let name = config::stop_signal().await?;
        tracing::info!("stopping because of {name}");
        process.shutdown.cancel();
        anyhow::Ok(())
    };
    let serving = config::patiently("consume", async || process.serve(reacts).await);
    tokio::try_join!(serving, stopping)?;
    Ok(())
}

struct Process {
    jetstream: async_nats::jetstream::Context,
    stream: String,
    name: String,
    shutdown: CancellationToken,
}

impl Process {
    async fn serve(&self, reacts: bool) -> Result<()> {
        let (outbox, prefix) = (Outbox::default(), config::subject(""));
        let replier = Replier::new(outbox.clone(), [config::subject("fulfilment.replies")]);
        match (self.name.as_str(), reacts) {
            ("inventory", false) => {
                self.run(inventory::SCOPE, &["inventory.>"], Inventory::new(replier)?).await
            }
            ("inventory", true) => {
                let service = Inventory::new(replier)?;
                self.run(inventory::SCOPE, TO_INVENTORY, Reacting { service, outbox, prefix }).await
            }
            ("shipping", false) => self.run(shipping::SCOPE, &["shipping.>"], Shipping::new(replier)?).await,
            ("shipping", true) => {
                let service = Shipping::new(replier)?;
                self.run(shipping::SCOPE, TO_SHIPPING, Reacting { service, outbox, prefix }).await
            }
            ("billing", false) => {
                let service = Billing::new(replier, Client::new(config::required("GATEWAY")?))?;
                self.run_leased(billing::SCOPE, &["billing.>"], service).await
            }
            ("billing", true) => {
                let service = Billing::new(replier, Client::new(config::required("GATEWAY")?))?;
                self.run_leased(billing::SCOPE, TO_BILLING, Reacting { service, outbox, prefix }).await
            }
            (other, _) => bail!("there is no service \"{other}\": inventory, billing or shipping"),
        }
    }

    /// One consumer a subject, and one inbox for all of them.
    async fn run<H: Handler + Clone + 'static>(
        &self,
        scope: &str,
        subjects: &[&str],
        handler: H,
    ) -> Result<()> {
        let inbox = inbox(scope)?.build()?;
        let consumers = self.consumers(subjects);
        let running =
            consumers.map(|consumer| consumer.run(inbox.clone(), handler.clone(), self.shutdown.clone()));
        try_join_all(running).await?;
        Ok(())
    }

    async fn run_leased<H: LeasedHandler + Clone + 'static>(
        &self,
        scope: &str,
        subjects: &[&str],
        handler: H,
    ) -> Result<()> {
        let lease = config::variable("LEASE_SECONDS").map_or(Ok(30), |seconds| seconds.parse::<u64>());
        let lease = Duration::from_secs(lease.context("read LEASE_SECONDS")?);
        // Each process that dies, and each answer that is lost, costs an attempt.
        let inbox = inbox(scope)?.attempts_max(100).leased(lease).build()?;
        let consumers = self.consumers(subjects).map(|consumer| consumer.ack_wait(lease));
        let running =
            consumers.map(|consumer| consumer.run(inbox.clone(), handler.clone(), self.shutdown.clone()));
        try_join_all(running).await?;
        Ok(())
    }

    fn consumers(&self, subjects: &[&str]) -> impl Iterator<Item = Consumer> {
        subjects.iter().map(|subject| {
            let durable = format!("{}-{}", self.name, subject.replace(['.', '>'], "-"));
            Consumer::new(self.jetstream.clone(), &self.stream, durable)
                .filter_subject(config::subject(subject))
                .concurrency(CONCURRENCY)
                // The sender of the command is told that it was given up.
                .dead_letter_subject(config::subject(&format!("dead.{}", self.name)))
        })
    }
}

fn inbox(scope: &str) -> Result<oncebox_inbox::Builder> {
    let pool = config::pool(&config::required("DATABASE_URL")?, CONCURRENCY)?;
    let backoff = (Duration::from_millis(100), Duration::from_secs(2));
    Ok(Inbox::builder(pool).scope(scope).single_tenant().backoff(backoff.0, backoff.1))
}
