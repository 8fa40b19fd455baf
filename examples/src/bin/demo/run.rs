//! The second act: an order service and a payment service that exchange messages, from the first
//! order to the verdict.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use anyhow::{Context, Result};
use deadpool_postgres::Pool;
use futures_util::future::try_join3;
use oncebox_examples::{
    audit::{Audit, Sabotage},
    config, order, payment,
};
use tokio::time::{Instant, sleep};

use crate::{
    Options,
    clients::{self, CLIENTS, Progress},
    copies::{self, Follower},
    processes,
    report::Report,
    servers::Servers,
    trouble::{self, Processes},
};

const PROGRESS_EVERY: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(100);
// When all orders are placed and everything runs again: if nothing arrives for this time, the
// missing ones count as lost.
const CATCH_UP_LIMIT: Duration = Duration::from_secs(60);

/// Orders and their payments by messages, while relays, consumers and nats-server are killed; true
/// when the books of both services agree.
pub(crate) async fn run(servers: &mut Servers, options: Options) -> Result<bool> {
    let (orders_url, payments_url) = (servers.url("orders"), servers.url("payments"));
    let orders = config::pool(&orders_url, CLIENTS + 2)?;
    let payments = config::pool(&payments_url, 4)?;
    for (url, pool, tables) in
        [(&orders_url, &orders, order::SCHEMA), (&payments_url, &payments, payment::SCHEMA)]
    {
        processes::migrate(url).await?;
        pool.get().await?.batch_execute(tables).await.context("create the service's tables")?;
    }
    let mut processes = Processes::start(servers)?;
    let progress = Arc::new(Progress::default());
    let mut report = Report::new(options, servers.are_ours());

    let started = Instant::now();
    println!("{} orders from {CLIENTS} clients, a tenth of them rolled back:", options.orders);
    tokio::select! {
        done = trouble_and_orders(servers, &mut processes, &orders, &payments, &progress, &mut report) => done?,
        failed = show_progress(&payments, &progress, started) => failed?,
    }
    println!("all orders are placed; waiting for the last payments ...");
    report.note_progress(&progress);
    catch_up(servers, &mut processes, &payments, &mut report).await?;
    processes.stop().await?;
    report.took = started.elapsed();

    let row = payments.get().await?.query_one(include_str!("status.sql"), &[]).await?;
    report.absorbed = usize::try_from(row.get::<_, i64>("replayed"))?;
    if let Some(sabotage) = options.sabotage {
        sabotage.commit(&**payments.get().await?).await?;
    }
    report.audit = Audit::read(&**orders.get().await?, &**payments.get().await?).await?;
    if report.audit.findings().is_empty() {
        report.planted_found = plant_errors(&orders, &payments).await?;
    }
    report.print();
    Ok(report.problems().is_empty())
}

/// Clients, copies and trouble, all at the same time, until each is done.
async fn trouble_and_orders(
    servers: &mut Servers,
    processes: &mut Processes,
    orders: &Pool,
    payments: &Pool,
    progress: &Arc<Progress>,
    report: &mut Report,
) -> Result<()> {
    let subject = servers.subject("orders.placed");
    let follower = Follower::new(servers.jetstream().await?, &servers.name, &subject).await?;
    let total = report.options.orders;
    let is_over = || progress.ended() == total && progress.is_calm.load(Ordering::Relaxed);
    let expected = || is_over().then(|| progress.committed.load(Ordering::Relaxed));
    let placing = clients::place_orders(orders.clone(), subject, total, progress.clone());
    let copying = copies::republish(follower, progress, expected);
    let troubling = trouble::cause(servers, processes, payments, progress, total);
    let ((), copies, lost) = try_join3(
        async { placing.await.context("place orders") },
        async { copying.await.context("republish messages") },
        troubling,
    )
    .await?;
    report.copies = copies;
    report.lost_by_nats = lost;
    (report.relay_kills, report.payment_kills) = processes.kills();
    Ok(())
}

/// A line every two seconds, until it is dropped.
async fn show_progress(payments: &Pool, progress: &Progress, started: Instant) -> Result<()> {
    loop {
        sleep(PROGRESS_EVERY).await;
        let row = payments.get().await?.query_one(include_str!("status.sql"), &[]).await?;
        let (charges, replayed): (i64, i64) = (row.get("charges"), row.get("replayed"));
        println!(
            "{:4} s  {:5} committed  {:4} rolled back  {charges:5} charged  {replayed:4} duplicates absorbed",
            started.elapsed().as_secs(),
            progress.committed.load(Ordering::Relaxed),
            progress.rolled_back.load(Ordering::Relaxed),
        );
    }
}

/// Waits until nothing is under way any more: everything in the stream is acknowledged, and every
/// charge has its receipt in the stream. Notes the messages of the stream.
async fn catch_up(
    servers: &Servers,
    processes: &mut Processes,
    payments: &Pool,
    report: &mut Report,
) -> Result<()> {
    let jetstream = servers.jetstream().await?;
    let mut placed =
        Follower::new(jetstream.clone(), &servers.name, &servers.subject("orders.placed")).await?;
    let mut charged =
        Follower::new(jetstream.clone(), &servers.name, &servers.subject("payments.charged")).await?;
    let stream = jetstream.get_stream(&servers.name).await.context("find the stream")?;
    let (mut deadline, mut seen) = (Instant::now() + CATCH_UP_LIMIT, 0);
    loop {
        processes.check()?;
        (report.placed, report.receipts) = (placed.read().await?, charged.read().await?);
        let status = payments.get().await?.query_one(include_str!("status.sql"), &[]).await?;
        let charges = usize::try_from(status.get::<_, i64>("charges"))?;
        // It is not there before the first payment service has lived long enough to make it.
        let consumer = stream.consumer_info("payment").await.ok();
        let is_idle = consumer.is_some_and(|info| info.num_pending == 0 && info.num_ack_pending == 0);
        if is_idle && report.placed.keys >= report.committed && charges <= report.receipts.keys {
            return Ok(());
        }
        // The number of keys is limited, so this ends.
        let far = report.placed.keys + report.receipts.keys;
        if far > seen {
            (deadline, seen) = (Instant::now() + CATCH_UP_LIMIT, far);
        }
        if Instant::now() > deadline {
            println!("nothing for {CATCH_UP_LIMIT:?}: what is missing now counts as lost");
            return Ok(());
        }
        sleep(POLL).await;
    }
}

/// A check that cannot fail proves nothing: plants each kind of error in the books, in a
/// transaction that is then rolled back, and counts how many the audit finds.
async fn plant_errors(orders: &Pool, payments: &Pool) -> Result<usize> {
    let mut client = payments.get().await?;
    let mut found = 0;
    for sabotage in Sabotage::ALL {
        let transaction = client.transaction().await?;
        sabotage.commit(&*transaction).await?;
        let audit = Audit::read(&**orders.get().await?, &*transaction).await?;
        transaction.rollback().await?;
        found += usize::from(sabotage.is_found_by(&audit));
    }
    Ok(found)
}
