//! An outage of NATS: the picture in docs/alerts.md, drawn from a run.
//!
//! A producer enqueues a thousand messages a second; after a third of the time nats-server is
//! killed, after two thirds it starts again. The relay's metrics are read four times a second, as
//! an operator would see them. The run fails unless every message is in the stream in the end.

use std::{fmt::Write as _, time::Duration};

use anyhow::Context;
use tokio::{
    task::JoinSet,
    time::{Instant, interval, sleep_until},
};

use crate::{
    backlog::PAYLOAD_BYTES,
    config::Config,
    relay::Relay,
    report,
    servers::{Servers, Session, within},
};

/// Messages of a transaction, and how often there is one.
const BATCH: i64 = 20;
const BATCH_INTERVAL: Duration = Duration::from_millis(20);
const SAMPLE_INTERVAL: Duration = Duration::from_millis(250);
const DELIVERY_LIMIT: Duration = Duration::from_secs(60);

/// The metrics of one moment.
#[derive(Clone, Copy, Debug)]
struct Sample {
    seconds: f64,
    lag_seconds: f64,
    published: f64,
}

/// Draws one run.
pub(crate) async fn measure(servers: &mut Servers, config: &Config) -> anyhow::Result<()> {
    let database = servers.migrated().await?;
    let mut stream = servers.fresh_stream().await?;
    let relay = Relay::start(servers, &database)?;
    let scraper = relay.scraper();
    within("the relay to listen", DELIVERY_LIMIT, async || Ok(scraper.scrape().await.ok())).await?;
    let (start, third) = (Instant::now(), config.duration / 3);
    let mut producer = JoinSet::new();
    let session = servers.session(&database).await?;
    producer.spawn(produce(session, servers.schema.sql(include_str!("sql/fill.sql")), start + 3 * third));
    let mut sampler = JoinSet::new();
    let end = start + 3 * third;
    sampler.spawn(async move {
        let (mut samples, mut ticks) = (Vec::new(), interval(SAMPLE_INTERVAL));
        while ticks.tick().await < end {
            samples.push(sample(start, &scraper.scrape().await?)?);
        }
        anyhow::Ok(samples)
    });
    sleep_until(start + third).await;
    servers.kill_nats().await;
    sleep_until(start + 2 * third).await;
    servers.resume_nats().await?;
    let samples = sampler.join_next().await.context("the sampler")???;
    let enqueued = producer.join_next().await.context("the producer")???;
    within("all messages", DELIVERY_LIMIT, async || {
        Ok((stream.info().await?.state.messages == enqueued).then_some(()))
    })
    .await?;
    relay.stop().await?;
    servers.delete_stream().await?;
    servers.drop_database(&database).await?;
    let file = report::directory()?.join("outage.svg");
    std::fs::create_dir_all(report::directory()?)?;
    std::fs::write(&file, draw(&samples, third.as_secs_f64()))
        .with_context(|| format!("write {}", file.display()))?;
    tracing::info!("outage: {enqueued} messages, drawn in {}", file.display());
    Ok(())
}

async fn produce(session: Session, fill: String, end: Instant) -> anyhow::Result<u64> {
    let fill = session.prepare(&fill).await?;
    let (payload_bytes, mut ticks, mut count) = (i32::try_from(PAYLOAD_BYTES)?, interval(BATCH_INTERVAL), 0);
    while ticks.tick().await < end {
        session.execute(&fill, &[&(count + 1), &(count + BATCH), &None::<i64>, &payload_bytes]).await?;
        count += BATCH;
    }
    Ok(count.cast_unsigned())
}

fn sample(start: Instant, metrics: &str) -> anyhow::Result<Sample> {
    let value = |name: &str| -> anyhow::Result<f64> {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.with_context(|| format!("no metric {name}"))?.parse().with_context(|| format!("read {name}"))
    };
    let seconds = start.elapsed().as_secs_f64();
    Ok(Sample {
        seconds,
        lag_seconds: value("oncebox_lag_seconds")?,
        published: value("oncebox_published_total")?,
    })
}

const WIDTH: f64 = 640.0;
const PANEL: f64 = 150.0;
const LEFT: f64 = 60.0;

/// Two panels over one axis of time; the outage is shaded.
fn draw(samples: &[Sample], third: f64) -> String {
    let lag: Vec<(f64, f64)> = samples.iter().map(|s| (s.seconds, s.lag_seconds)).collect();
    let rate = samples.windows(2).filter_map(|pair| match pair {
        [a, b] => Some((b.seconds, (b.published - a.published) / (b.seconds - a.seconds))),
        _ => None,
    });
    let rate: Vec<(f64, f64)> = rate.collect();
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0} {:.0}\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        WIDTH + LEFT + 20.0,
        2.0 * PANEL + 100.0
    );
    panel(&mut svg, 25.0, third, "lag, seconds (oncebox_lag_seconds)", "#b03030", &lag);
    panel(&mut svg, PANEL + 65.0, third, "published a second (oncebox_published_total)", "#2060a0", &rate);
    svg.push_str("</svg>\n");
    svg
}

fn panel(svg: &mut String, top: f64, third: f64, title: &str, colour: &str, points: &[(f64, f64)]) {
    let max = points.iter().map(|point| point.1).fold(1.0, f64::max);
    let x = |seconds: f64| LEFT + WIDTH * seconds / (3.0 * third);
    let y = |value: f64| top + PANEL * (1.0 - value / max);
    let bottom = top + PANEL;
    let line: Vec<String> = points.iter().map(|p| format!("{:.1},{:.1}", x(p.0), y(p.1))).collect();
    let _ = write!(
        svg,
        "<rect x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{PANEL:.1}\" fill=\"#eeeeee\"/>\n\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#777777\">nats-server is away</text>\n\
         <text x=\"{LEFT}\" y=\"{:.1}\">{title}</text>\n\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{max:.0}</text>\n\
         <text x=\"{:.1}\" y=\"{bottom:.1}\" text-anchor=\"end\">0</text>\n\
         <path d=\"M{LEFT} {top:.1}V{bottom:.1}H{:.1}\" fill=\"none\" stroke=\"black\"/>\n\
         <polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>\n",
        x(third),
        WIDTH / 3.0,
        x(1.5 * third),
        top + 14.0,
        top - 7.0,
        LEFT - 6.0,
        top + 9.0,
        LEFT - 6.0,
        LEFT + WIDTH,
        line.join(" ")
    );
    for seconds in [third, 2.0 * third, 3.0 * third] {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{seconds:.0} s</text>",
            x(seconds),
            bottom + 14.0
        );
    }
}
