//! An ordinary day in a database with a history, against one without: a thousand messages a second
//! through a relay, and the claims of an inbox.

use crate::{
    config::Config,
    inbox::{EFFECT_TABLE, claims},
    report::Report,
    servers::Servers,
    statistics::median,
    trickle::{self, Round},
};

use super::settle;

const RATE: u32 = 1_000;

/// Both databases have nothing due; the second one has a history.
pub(super) async fn trickle(
    servers: &Servers,
    config: &Config,
    databases: [&str; 2],
    report: &mut Report,
) -> anyhow::Result<()> {
    let mut rounds: [Vec<Round>; 2] = Default::default();
    for round in 0..config.rounds {
        for side in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
            settle(servers, databases[side]).await?;
            let prefix = format!("trickle-{round}-");
            let took = trickle::relay_in(servers, databases[side], RATE, config.duration, prefix).await?;
            tracing::info!(
                "growth: trickle p50 {:.2} ms, p99 {:.2} ms, PostgreSQL {:.1} %",
                took.latencies.p50,
                took.latencies.p99,
                took.postgres_percent
            );
            rounds[side].push(took);
        }
    }
    let of = |side: usize, value: fn(&Round) -> f64| median(rounds[side].iter().map(value));
    let ratio = |value| of(0, value) / of(1, value);
    let behind = format!("{:.2} ms, empty {:.2}", of(1, |r| r.latencies.p50), of(0, |r| r.latencies.p50));
    report.add("growth_trickle_ratio", ratio(|round| round.latencies.p50), behind);
    let behind =
        format!("{:.1} %, empty {:.1}", of(1, |r| r.postgres_percent), of(0, |r| r.postgres_percent));
    report.add("growth_trickle_postgres_ratio", ratio(|round| round.postgres_percent), behind);
    Ok(())
}

/// Claims of new keys in an inbox that has `ROWS` keys, against one that has none.
pub(super) async fn claim(servers: &Servers, config: &Config, report: &mut Report) -> anyhow::Result<()> {
    let (empty, large) = (servers.migrated().await?, servers.migrated().await?);
    servers.session(&empty).await?.batch_execute(EFFECT_TABLE).await?;
    let session = servers.session(&large).await?;
    session.batch_execute(EFFECT_TABLE).await?;
    session.batch_execute("SET synchronous_commit = off; SET work_mem = '256MB'").await?;
    let fill = servers.schema.sql(include_str!("../sql/fill_inbox.sql"));
    session.execute(&fill, &[&i64::try_from(config.rows)?]).await?;
    session.batch_execute("VACUUM (ANALYZE)").await?;
    session.batch_execute("CHECKPOINT").await?;
    drop(session);
    let mut ratios = Vec::new();
    for round in 0..config.rounds {
        let rates = claims(servers, config, [&empty, &large], (round as u64) << 32).await?;
        tracing::info!(
            "growth: {:.0} handled a second, with {} keys {:.0}",
            rates.reference,
            config.rows,
            rates.measured
        );
        ratios.push(rates.ratio());
    }
    report.add("growth_claim_ratio", median(ratios), format!("{} keys in the inbox", config.rows));
    servers.drop_database(&large).await?;
    servers.drop_database(&empty).await
}
