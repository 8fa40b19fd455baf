//! Everything that goes wrong, on purpose, while the clients place their orders.

use std::{sync::atomic::Ordering, time::Duration};

use anyhow::{Context, Result};
use deadpool_postgres::Pool;
use tokio::time::{Instant, sleep};

use crate::{clients::Progress, processes::Process, servers::Servers};

const PAUSE: Duration = Duration::from_millis(20);
// The clients hurry before and after each event, so that it meets messages at every stage.
const RUSH_BEFORE: Duration = Duration::from_millis(150);
const RUSH_AFTER: Duration = Duration::from_millis(100);
// How long a killed process is missed before it is started again.
const ABSENCE: Duration = Duration::from_millis(500);
// Without an order for this time, something is stuck.
const STANDSTILL_LIMIT: Duration = Duration::from_secs(30);

/// A fault, and the share of the orders after which it happens.
const EVENTS: [(usize, Event); 14] = [
    (4, Event::BackUpNats),
    (8, Event::LoseTail),
    (13, Event::KillRelay(0)),
    (20, Event::KillPayment),
    (27, Event::KillRelay(1)),
    (34, Event::KillRelay(0)),
    (41, Event::KillPayment),
    (48, Event::KillRelay(1)),
    (55, Event::KillPayment),
    (62, Event::KillRelay(0)),
    (69, Event::KillRelays),
    (76, Event::KillPayment),
    (83, Event::KillRelay(1)),
    (90, Event::KillRelays),
];

#[derive(Clone, Copy, Debug)]
enum Event {
    /// One of the relays of the orders.
    KillRelay(usize),
    /// All of them.
    KillRelays,
    /// The process of the payment service that is at work, not the one that stands by.
    KillPayment,
    /// Stops nats-server, copies its store, and starts it again.
    BackUpNats,
    /// Kills it, and puts that copy in the place of its store: all that it acknowledged since is
    /// lost.
    LoseTail,
}

/// All processes of a run.
#[derive(Debug)]
pub(crate) struct Processes {
    /// Two that share the lanes of the order service's outbox.
    pub(crate) relays: Vec<Process>,
    /// One for the outbox of the payment service, with the receipts.
    pub(crate) receipts: Process,
    /// Two of the payment service.
    pub(crate) payments: Vec<Process>,
}

impl Processes {
    pub(crate) fn start(servers: &Servers) -> Result<Self> {
        Ok(Self {
            relays: vec![
                Process::relay("relay-1", servers, &servers.url("orders"))?,
                Process::relay("relay-2", servers, &servers.url("orders"))?,
            ],
            receipts: Process::relay("relay-receipts", servers, &servers.url("payments"))?,
            payments: vec![Process::payment("payment-1", servers)?, Process::payment("payment-2", servers)?],
        })
    }

    /// An error when one of them has ended without being killed.
    pub(crate) fn check(&mut self) -> Result<()> {
        let receipts = std::iter::once(&mut self.receipts);
        self.relays.iter_mut().chain(receipts).chain(&mut self.payments).try_for_each(Process::check)
    }

    pub(crate) fn kills(&self) -> (u32, u32) {
        let sum = |processes: &[Process]| processes.iter().map(|process| process.kills).sum();
        (sum(&self.relays), sum(&self.payments))
    }

    pub(crate) async fn stop(self) -> Result<()> {
        for process in self.relays.into_iter().chain([self.receipts]).chain(self.payments) {
            process.stop().await?;
        }
        Ok(())
    }
}

/// Runs through the events as the orders come in; returns how many messages nats-server lost.
pub(crate) async fn cause(
    servers: &mut Servers,
    processes: &mut Processes,
    payments: &Pool,
    progress: &Progress,
    orders: usize,
) -> Result<u64> {
    let mut lost = 0;
    for (percent, event) in EVENTS {
        wait_for(progress, orders * percent / 100, processes).await?;
        progress.rush.store(true, Ordering::Relaxed);
        sleep(RUSH_BEFORE).await;
        match event {
            Event::KillRelay(which) => {
                let relay = &mut processes.relays[which..=which];
                kill_and_restart(relay, progress, "the other one has the lanes").await?;
            }
            Event::KillRelays => {
                kill_and_restart(&mut processes.relays, progress, "messages wait in the outbox").await?;
            }
            Event::KillPayment => {
                let which = active_payment(payments, &processes.payments).await?;
                let payment = &mut processes.payments[which..=which];
                kill_and_restart(payment, progress, "the one that stood by takes over").await?;
            }
            Event::BackUpNats => {
                if servers.back_up_nats().await? {
                    println!("        nats-server was restarted, and its store copied");
                } else {
                    println!("        nats-server is not ours: it is not restarted, and loses nothing");
                }
            }
            Event::LoseTail => {
                wait_for_publishing(servers, processes).await?;
                lost += servers.lose_tail(progress).await?;
                if lost > 0 {
                    println!("        kill -9 nats-server: an older copy of its store lacks {lost} messages");
                }
            }
        }
        progress.rush.store(false, Ordering::Relaxed);
    }
    progress.is_calm.store(true, Ordering::Relaxed);
    Ok(lost)
}

/// Waits until nats-server has something to lose. A relay that found it away when it started is
/// started again meanwhile.
async fn wait_for_publishing(servers: &Servers, processes: &mut Processes) -> Result<()> {
    let since = Instant::now();
    while servers.are_ours() && !servers.is_ahead_of_copy().await? && since.elapsed() < STANDSTILL_LIMIT {
        processes.check()?;
        sleep(PAUSE).await;
    }
    Ok(())
}

async fn kill_and_restart(processes: &mut [Process], progress: &Progress, meanwhile: &str) -> Result<()> {
    let names: Vec<&str> = processes.iter().map(|process| process.name.as_str()).collect();
    println!("        kill -9 {}: {meanwhile}", names.join(" "));
    for process in &mut *processes {
        process.kill().await?;
    }
    sleep(RUSH_AFTER).await;
    progress.rush.store(false, Ordering::Relaxed);
    sleep(ABSENCE).await;
    processes.iter_mut().try_for_each(Process::restart)
}

/// The process that wrote down its counts last.
async fn active_payment(pool: &Pool, payments: &[Process]) -> Result<usize> {
    let row = pool.get().await?.query_opt(include_str!("active.sql"), &[]).await?;
    let name: String = row.map(|row| row.get("name")).unwrap_or_default();
    Ok(payments.iter().position(|process| name.starts_with(&process.name)).unwrap_or(0))
}

async fn wait_for(progress: &Progress, orders: usize, processes: &mut Processes) -> Result<()> {
    let (mut seen, mut since) = (progress.ended(), Instant::now());
    while progress.ended() < orders {
        processes.check()?;
        sleep(PAUSE).await;
        if progress.ended() > seen {
            (seen, since) = (progress.ended(), Instant::now());
        }
        if since.elapsed() > STANDSTILL_LIMIT {
            return Err(anyhow::anyhow!("no order for {STANDSTILL_LIMIT:?}")).context("wait for orders");
        }
    }
    Ok(())
}
