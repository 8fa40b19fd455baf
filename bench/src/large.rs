//! Large payloads: the relay's memory while it puts a hundred of 32 MiB into the Object Store.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use async_nats::jetstream;
use tempfile::NamedTempFile;
use tokio::time::Instant;

use crate::{
    config::Config,
    relay::Relay,
    report::Report,
    servers::{STREAM, Servers, within},
    statistics::median,
};

const MESSAGES: i32 = 100;
const MIB_EACH: i32 = 32;
const BUCKET: &str = "LARGE";
const LIMIT: Duration = Duration::from_secs(900);

/// Takes all rounds.
pub(crate) async fn measure(servers: &Servers, config: &Config, report: &mut Report) -> anyhow::Result<()> {
    let (mut peaks, mut rates) = (Vec::new(), Vec::new());
    for _ in 0..config.rounds {
        let (peak, rate) = round(servers).await?;
        peaks.push(peak);
        rates.push(rate);
    }
    let behind = format!("{MESSAGES} messages of {MIB_EACH} MiB");
    report.add("large_relay_rss_mib", median(peaks.iter().copied()), behind.clone());
    report.add("large_mib_per_second", median(rates.iter().copied()), behind);
    Ok(())
}

/// The relay's peak in MiB, and the MiB that it put in a second.
async fn round(servers: &Servers) -> anyhow::Result<(f64, f64)> {
    let database = servers.migrated().await?;
    servers.fresh_stream().await?;
    let session = servers.session(&database).await?;
    let fill = servers.schema.sql(include_str!("sql/fill_large.sql"));
    session.query(&fill, &[&MESSAGES, &MIB_EACH]).await?;
    let file = NamedTempFile::with_suffix(".toml")?;
    std::fs::write(file.path(), format!("object_store = \"{BUCKET}\"\n"))?;
    let jetstream = jetstream::new(servers.nats().await?);
    let begun = Instant::now();
    let mut relay = Relay::start_with(servers, &database, file.path())?;
    let expected = u64::from(MESSAGES.unsigned_abs());
    within("all messages", LIMIT, async || {
        relay.check()?;
        let there = jetstream.get_stream(STREAM).await?.cached_info().state.messages;
        Ok((there >= expected).then_some(()))
    })
    .await?;
    let took = begun.elapsed();
    let peak = relay.peak_rss_mib()?;
    relay.stop().await?;
    let bucket = jetstream.get_stream(format!("OBJ_{BUCKET}")).await.context("the bucket")?;
    let bytes = bucket.cached_info().state.bytes;
    let sent = u64::from((MESSAGES * MIB_EACH).unsigned_abs()) << 20;
    ensure!(bytes >= sent, "the bucket has {bytes} bytes of {sent}");
    jetstream.delete_stream(format!("OBJ_{BUCKET}")).await?;
    servers.drop_database(&database).await?;
    servers.delete_stream().await?;
    tracing::info!("large: {peak:.0} MiB at most, {:.0} s", took.as_secs_f64());
    Ok((peak, f64::from(MESSAGES * MIB_EACH) / took.as_secs_f64()))
}
