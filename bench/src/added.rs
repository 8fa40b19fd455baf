//! The time that the inbox adds to a message that comes alone.
//!
//! One after another, by turns: the bare transaction of the handler, and the same message through
//! `Inbox::run`, where nothing is shared with a message before or after it. Both wait for the disk;
//! the difference of the medians is the inbox.

use std::time::Duration;

use oncebox_inbox::Inbox;
use tokio::time::Instant;

use crate::{
    config::Config,
    inbox::{Bare, Effect, message, pool},
    report::Report,
    servers::Servers,
    statistics::{median, percentile},
    workers::Side as _,
};

const WARM_UP: usize = 200;

/// Takes all rounds.
pub(crate) async fn measure(servers: &Servers, config: &Config, report: &mut Report) -> anyhow::Result<()> {
    let (mut bare, mut inbox) = (Vec::new(), Vec::new());
    for _ in 0..config.rounds {
        let (without, with) = take(servers, config.duration / 4).await?;
        tracing::info!("a message alone: {without:.2} ms bare, {with:.2} ms through the inbox");
        bare.push(without);
        inbox.push(with);
    }
    let added = median(inbox.iter().zip(&bare).map(|(with, without)| with - without));
    let behind = format!("p50 {:.2} ms, bare {:.2} ms", median(inbox.into_iter()), median(bare.into_iter()));
    report.add("inbox_added_p50_ms", added, behind);
    Ok(())
}

/// The medians without and with the inbox, in milliseconds.
async fn take(servers: &Servers, length: Duration) -> anyhow::Result<(f64, f64)> {
    let database = servers.migrated().await?;
    let session = servers.session(&database).await?;
    session.batch_execute(include_str!("sql/effect_table.sql")).await?;
    drop(session);
    let pool = pool(servers, &database, 1)?;
    let bare = Bare::new(pool.clone());
    let inbox = Inbox::builder(pool).scope("bench:effect").single_tenant().build()?;
    let (mut without, mut with) = (Vec::new(), Vec::new());
    let end = Instant::now() + length;
    for number in 0.. {
        let message = message(number, 0)?;
        let start = Instant::now();
        bare.once(0).await?;
        let between = Instant::now();
        inbox.run(&Effect::Awaited, &message).await?;
        without.push((between - start).as_secs_f64() * 1e3);
        with.push(between.elapsed().as_secs_f64() * 1e3);
        if between > end && with.len() > 2 * WARM_UP {
            break;
        }
    }
    drop((bare, inbox));
    servers.drop_database(&database).await?;
    let p50 = |mut times: Vec<f64>| {
        times.drain(..WARM_UP);
        times.sort_by(f64::total_cmp);
        percentile(&times, 50)
    };
    Ok((p50(without), p50(with)))
}
