//! A drain whose messages are checked against a contract, against the same drain without one.
//!
//! The payloads are orders of about 1,000 bytes of JSON, with twelve items; the schema has a rule
//! for each of their fields.

use anyhow::{Context as _, Result};

use crate::{
    backlog::Backlog,
    config::Config,
    drain::{Beside, drain},
    report::Report,
    servers::Servers,
    statistics::median,
};

const TRANSACTION_MESSAGES: usize = 1_000;

/// Takes all rounds.
pub(crate) async fn measure(servers: &Servers, config: &Config, report: &mut Report) -> Result<()> {
    let backlog = fill(servers, config.messages).await?;
    let (mut ratios, mut added, mut rates) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..config.rounds {
        let plain = async || drain(servers, &backlog, Beside::Nothing).await.context("drain");
        let checked =
            async || drain(servers, &backlog, Beside::Contracts).await.context("drain with contracts");
        let (plain, checked) = if round.is_multiple_of(2) {
            let plain = plain().await?;
            (plain, checked().await?)
        } else {
            let checked = checked().await?;
            (plain().await?, checked)
        };
        tracing::info!("contracts: {:.0}/s, without {:.0}/s", checked.rate, plain.rate);
        ratios.push(checked.rate / plain.rate);
        added.push(checked.cpu_us_per_message - plain.cpu_us_per_message);
        rates.push(checked.rate);
    }
    let bytes = backlog.messages.iter().map(|message| message.payload.len()).sum::<usize>() / config.messages;
    let remark = format!(
        "{:.0}/s of {bytes} bytes; a check takes {:.1} us of the relay's time",
        median(rates),
        median(added)
    );
    report.add("contracts_drain_ratio", median(ratios), remark);
    servers.drop_database(&backlog.database).await
}

async fn fill(servers: &Servers, messages: usize) -> Result<Backlog> {
    let database = servers.migrated().await?;
    let session = servers.session(&database).await?;
    let fill = session.prepare(&servers.schema.sql(include_str!("sql/fill_orders.sql"))).await?;
    for first in (1..=messages).step_by(TRANSACTION_MESSAGES) {
        let last = messages.min(first + TRANSACTION_MESSAGES - 1);
        let range = (i64::try_from(first)?, i64::try_from(last)?);
        session.execute(&fill, &[&range.0, &range.1]).await.context("enqueue the backlog")?;
    }
    session.batch_execute("VACUUM (ANALYZE)").await?;
    drop(session);
    Backlog::load(servers, database, messages).await
}
