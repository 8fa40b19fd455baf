//! Who is killed, and when: in turn a relay, a service, an orchestrator, each time another by
//! chance; and nats-server twice.

use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::time::{Instant, sleep};

use super::{
    customers::Progress,
    site::{Kind, Site},
};
use crate::servers::Servers;

/// A process is killed each time after this number of orders.
const EVERY: usize = 40;
/// How long a killed process is missed before it is started again.
const ABSENCE: Duration = Duration::from_millis(300);
const POLL: Duration = Duration::from_millis(20);
/// Without an order for this time, something is stuck.
const STANDSTILL_LIMIT: Duration = Duration::from_secs(60);

/// How many were killed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Deaths {
    pub(crate) relays: u32,
    pub(crate) services: u32,
    pub(crate) orchestrators: u32,
    pub(crate) nats: u32,
}

impl Deaths {
    /// Kills while the orders are taken.
    pub(crate) async fn cause(
        &mut self,
        servers: &mut Servers,
        site: &mut Site,
        progress: &Progress,
        orders: usize,
    ) -> Result<()> {
        let every = EVERY.min(orders / 8);
        // Early, since a slow machine never comes to the last orders.
        let turns = orders / every;
        let restarts = [turns / 12 + 1, turns / 3 + 1];
        for turn in 1..turns {
            wait_for(progress, turn * every, site).await?;
            // Time is up.
            if progress.taken() < turn * every {
                break;
            }
            if restarts.contains(&turn) && servers.restart_nats().await? {
                self.nats += 1;
                progress.note("nats-server was restarted".to_owned());
                continue;
            }
            let (kind, count) = match turn % 3 {
                0 => (Kind::Orchestrator, &mut self.orchestrators),
                1 => (Kind::Service, &mut self.services),
                _ => (Kind::Relay, &mut self.relays),
            };
            let victim = site.victim(kind);
            progress.note(format!("kill -9 {}", victim.name));
            victim.kill().await?;
            *count += 1;
            sleep(ABSENCE).await;
            victim.restart()?;
        }
        wait_for(progress, orders, site).await
    }

    pub(crate) fn processes(&self) -> u32 {
        self.relays + self.services + self.orchestrators
    }
}

async fn wait_for(progress: &Progress, orders: usize, site: &mut Site) -> Result<()> {
    let (mut seen, mut since) = (progress.taken(), Instant::now());
    while progress.taken() < orders && !progress.is_closed() {
        site.check()?;
        sleep(POLL).await;
        if progress.taken() > seen {
            (seen, since) = (progress.taken(), Instant::now());
        }
        ensure!(since.elapsed() < STANDSTILL_LIMIT, "no order was taken for {STANDSTILL_LIMIT:?}");
    }
    Ok(())
}
