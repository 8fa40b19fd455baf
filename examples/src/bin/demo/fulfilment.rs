//! The first act: orders over HTTP, each led by a saga through inventory, billing and shipping,
//! while relays, services, orchestrators and nats-server are killed at random. Some cards are
//! declined, some items sell out, some parcels go nowhere, and the gateway loses answers. In the
//! end each order is fulfilled or undone, and the books of all balance.

mod customers;
mod deaths;
mod site;
mod verdict;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use deadpool_postgres::{Object, Pool};
use oncebox_examples::{
    fulfilment::ledger::{Clients, Fraud, Ledger},
    gateway::Books,
};
use tokio::time::{Instant, sleep};
use tokio_postgres::Client;

use crate::servers::Servers;
use customers::{CUSTOMERS, Progress};
use deaths::Deaths;
use site::Site;
use verdict::Verdict;

const POLL: Duration = Duration::from_millis(250);
const SHOW_EVERY: u32 = 8;
/// After this time no customer orders any more, however many orders there are by then.
const ORDERING_MAX: Duration = Duration::from_secs(60);
/// If no saga ends for this time, the open ones count as stuck.
const STANDSTILL_LIMIT: Duration = Duration::from_secs(60);

/// True when the books balance.
pub(crate) async fn run(servers: &mut Servers, orders: usize, fraud: Option<Fraud>) -> Result<bool> {
    // Both lead by the same decisions, and each in every second run.
    let by_file = fastrand::bool();
    let mut site = Site::start(servers, orders, by_file).await?;
    println!(
        "{orders} orders over HTTP from {CUSTOMERS} customers, or what they order in {} s; each a saga: reserve, charge, \
         ship, led by {}",
        ORDERING_MAX.as_secs(),
        if by_file { "the file order.toml" } else { "a definition in Rust" }
    );
    let (started, progress, mut deaths) = (Instant::now(), Progress::default(), Deaths::default());
    let (addresses, pool) = (site.addresses.clone(), site.shop.clone());
    let watching = watch(&pool, &progress, started);
    let suffering = async {
        let taken = customers::order_all(&addresses, orders, started + ORDERING_MAX, &progress);
        tokio::try_join!(taken, deaths.cause(servers, &mut site, &progress, orders))?;
        progress.note_calm();
        // A process that ends by itself from now on is an error.
        loop {
            if let Err(problem) = site.check() {
                return Result::<()>::Err(problem);
            }
            sleep(POLL).await;
        }
    };
    tokio::select! {
        watched = watching => watched?,
        suffered = suffering => suffered?,
    }
    let took = started.elapsed();
    // The gateway's books go with its process.
    let gateway = site.gateway_books().await?;
    let databases = site.databases().await?;
    site.stop().await?;
    let clients = clients(&databases);
    if let Some(fraud) = fraud {
        fraud.commit(&clients).await?;
    }
    let stocked = customers::stocked(orders);
    let ledger = Ledger::read(&clients, &gateway, stocked).await?;
    let mut planted_found = 0;
    for fraud in Fraud::ALL {
        planted_found += usize::from(is_found(fraud, &databases, &gateway, stocked, &ledger).await?);
    }
    let verdict = Verdict {
        orders: progress.taken(),
        asked_twice: progress.asked_twice(),
        deaths,
        servers_are_ours: servers.are_ours(),
        gateway,
        ledger,
        planted_found,
        took,
    };
    Ok(verdict.print())
}

fn clients([shop, inventory, billing, shipping]: &[Object; 4]) -> Clients<'_, Client> {
    Clients { shop, inventory, billing, shipping }
}

/// Watches the sagas until all have ended, with a line now and then.
async fn watch(pool: &Pool, progress: &Progress, started: Instant) -> Result<()> {
    let (mut ended_before, mut since) = (0, Instant::now());
    for round in 1.. {
        sleep(POLL).await;
        let row = pool.get().await?.query_one(include_str!("fulfilment/ended.sql"), &[]).await?;
        let number = |name: &str| -> Result<usize> { Ok(usize::try_from(row.get::<_, i64>(name))?) };
        let (shipped, undone, stuck) = (number("shipped")?, number("undone")?, number("stuck")?);
        let ended = shipped + undone;
        progress.note_ended(ended);
        let is_over = progress.is_calm() && ended == progress.taken();
        if round % SHOW_EVERY == 0 || is_over {
            let (seconds, taken, last) = (started.elapsed().as_secs(), progress.taken(), progress.last());
            println!(
                "{seconds:4} s  {taken:5} taken  {shipped:5} shipped  {undone:4} undone  {stuck} stuck  {last}"
            );
        }
        if is_over {
            return Ok(());
        }
        if ended > ended_before {
            (ended_before, since) = (ended, Instant::now());
        }
        if since.elapsed() > STANDSTILL_LIMIT {
            println!("nothing for {STANDSTILL_LIMIT:?}: what has not ended by now counts as stuck");
            return Ok(());
        }
    }
    Ok(())
}

/// A check that cannot fail proves nothing: plants an error in transactions that are then rolled
/// back, and looks whether the books show more than before.
async fn is_found(
    fraud: Fraud,
    databases: &[Object; 4],
    gateway: &Books,
    stocked: i64,
    before: &Ledger,
) -> Result<bool> {
    for client in databases {
        client.batch_execute("BEGIN").await?;
    }
    let clients = clients(databases);
    fraud.commit(&clients).await?;
    let ledger = Ledger::read(&clients, gateway, stocked).await.context("read falsified books")?;
    for client in databases {
        client.batch_execute("ROLLBACK").await?;
    }
    ensure!(ledger.orders.len() == before.orders.len(), "a planted error changes no order");
    Ok(ledger.findings().len() > before.findings().len())
}
