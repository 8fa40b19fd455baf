//! The statement that counts failing, dead and snoozed messages for a status and for each scrape,
//! beside millions of rows of a hundred inboxes.

use tokio::time::Instant;

use crate::{config::Config, report::Report, servers::Servers, statistics::median};

const COUNTS: usize = 20;

/// Fills a database of its own.
pub(crate) async fn measure(servers: &Servers, config: &Config, report: &mut Report) -> anyhow::Result<()> {
    let database = servers.migrated().await?;
    let session = servers.session(&database).await?;
    let fill = session.prepare(&servers.schema.sql(include_str!("sql/fill_inboxes.sql"))).await?;
    tracing::info!("inboxes: {} keys", config.backlog);
    session.batch_execute("SET synchronous_commit = off").await?;
    session.execute(&fill, &[&i64::try_from(config.backlog)?]).await?;
    session.batch_execute("VACUUM (ANALYZE)").await?;
    let sql = servers.schema.sql(include_str!("../../relay/src/postgres/sql/inboxes.sql"));
    let statement = session.prepare(&sql).await?;
    let mut times = Vec::new();
    for _ in 0..COUNTS {
        let start = Instant::now();
        let rows = session.query(&statement, &[&1_000_i64, &100_i64]).await?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
        anyhow::ensure!(rows.len() == 100, "{} inboxes were counted", rows.len());
    }
    let count = median(times);
    tracing::info!("inboxes: counted in {count:.1} ms");
    report.add("inboxes_ms", count, format!("100 inboxes, {} keys", config.backlog));
    drop(session);
    servers.drop_database(&database).await
}
