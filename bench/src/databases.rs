//! One relay process for 1, 10 and 100 databases: its cost while all are idle, and the latency at a
//! thousand messages a second over ten databases against one.
//!
//! Idle, each database has had one message. The relay is scraped meanwhile, as Prometheus does.

use std::{fmt::Write as _, path::PathBuf, time::Duration};

use tokio::time::{Instant, sleep};

use crate::{
    backends,
    config::Config,
    relay::Relay,
    report::Report,
    servers::{Servers, within},
    statistics::median,
    traffic::{self, Plan},
};

const COUNTS: [usize; 3] = [1, 10, 100];
/// The number of databases to which a thousand messages a second go.
const BUSY: usize = 10;
const RATE: u32 = 1_000;
const PRODUCERS: usize = 20;
const DELIVERY_LIMIT: Duration = Duration::from_secs(60);
const CALM: Duration = Duration::from_secs(10);
const SCRAPE_EVERY: Duration = Duration::from_secs(15);

/// One relay, idle.
#[derive(Clone, Copy, Debug)]
struct Round {
    cpu_percent: f64,
    postgres_percent: f64,
    peak_rss_mib: f64,
    connections: f64,
    /// The median latency at the rate.
    p50: f64,
}

type Value = fn(&Round) -> f64;

/// Takes all rounds.
pub(crate) async fn measure(servers: &Servers, config: &Config, report: &mut Report) -> anyhow::Result<()> {
    let mut rounds: [Vec<Round>; COUNTS.len()] = Default::default();
    for _ in 0..config.rounds {
        for (index, count) in COUNTS.into_iter().enumerate() {
            let round = take(servers, count, config.duration).await?;
            tracing::info!("{count} databases: {round:?}");
            rounds[index].push(round);
        }
    }
    let of = |index: usize, value: Value| median(rounds[index].iter().map(value));
    let values: [(&str, Value); 5] = [
        ("idle_cpu_percent", |round| round.cpu_percent),
        ("idle_postgres_percent", |round| round.postgres_percent),
        ("peak_rss_mib", |round| round.peak_rss_mib),
        ("connections", |round| round.connections),
        ("p50_ms", |round| round.p50),
    ];
    for (index, count) in COUNTS.into_iter().enumerate() {
        for (name, value) in values {
            report.detail(&format!("databases_{count}_{name}"), of(index, value));
        }
    }
    let last = COUNTS.len() - 1;
    let one = |value| format!("one database {:.2}", of(0, value));
    report.add("databases_rss_mib", of(last, |round| round.peak_rss_mib), one(|round| round.peak_rss_mib));
    report.add("databases_cpu_percent", of(last, |round| round.cpu_percent), one(|round| round.cpu_percent));
    report.add("databases_connections", of(last, |round| round.connections), one(|round| round.connections));
    let (many, one) = (of(1, |round| round.p50), of(0, |round| round.p50));
    report.add("databases_p50_ratio", many / one, format!("{many:.2} ms and {one:.2} ms at {RATE}/s"));
    Ok(())
}

/// The configuration file that names these databases.
fn write_file(servers: &Servers, databases: &[String]) -> anyhow::Result<PathBuf> {
    let mut file = String::new();
    for name in databases {
        writeln!(file, "[[database]]\nname = {name:?}\nurl = {:?}", servers.database_url(name))?;
    }
    std::fs::create_dir_all(crate::report::directory()?)?;
    let path = crate::report::directory()?.join("databases.toml");
    std::fs::write(&path, file)?;
    Ok(path)
}

async fn take(servers: &Servers, count: usize, length: Duration) -> anyhow::Result<Round> {
    let mut databases = vec![servers.migrated().await?];
    while databases.len() < count {
        databases.push(servers.copy_of(&databases[0]).await?);
    }
    let path = write_file(servers, &databases)?;
    let mut stream = servers.fresh_stream().await?;
    let mut relay = Relay::start_with(servers, "none", &path)?;
    let plan = |prefix: &str, interval: Duration| -> anyhow::Result<Plan> {
        let total = usize::try_from(length.as_micros() / (Duration::from_secs(1) / RATE).as_micros())?;
        let statement = servers.schema.sql(include_str!("sql/enqueue_ordered.sql"));
        let start = Instant::now() + Duration::from_millis(50);
        Ok(Plan { prefix: prefix.to_owned(), statement, publishes: None, interval, total, start })
    };
    for name in &databases {
        traffic::probe(&servers.session(name).await?, &plan("probe-", Duration::ZERO)?).await?;
    }
    within("the first messages to arrive", DELIVERY_LIMIT, async || {
        relay.check()?;
        Ok((stream.info().await?.state.messages == count as u64).then_some(()))
    })
    .await?;
    sleep(CALM).await;
    let admin = servers.admin().await?;
    let mut carriers = Vec::new();
    for name in &databases {
        carriers.push(backends::of_carrier(&admin, name).await?);
    }
    let (before, start) = (relay.cpu()?, Instant::now());
    tokio::select! {
        () = relay.scraper().each(SCRAPE_EVERY) => {}
        () = sleep(length) => {}
    }
    let (used, elapsed) = (relay.cpu()? - before, start.elapsed());
    let percent = |time: Duration| 100.0 * time.as_secs_f64() / elapsed.as_secs_f64();
    let mut postgres = Duration::ZERO;
    for carrier in &carriers {
        postgres += carrier.cpu_since(&admin).await?;
    }
    #[expect(clippy::cast_precision_loss, reason = "a few hundred")]
    let connections =
        carriers.iter().map(backends::Backends::count).sum::<usize>() as f64 / databases.len() as f64;
    let peak_rss_mib = relay.peak_rss_mib()?;

    stream.purge().await?;
    let mut producers = Vec::new();
    for number in 0..PRODUCERS {
        producers.push(servers.session(&databases[number % databases.len().min(BUSY)]).await?);
    }
    traffic::probe(&producers[0], &plan("paced-", Duration::ZERO)?).await?;
    let paced = plan("paced-", Duration::from_secs(1) / RATE)?;
    let flow = traffic::flow(producers, &stream, &paced).await?;
    relay.stop().await?;
    drop(admin);
    servers.delete_stream().await?;
    for name in &databases {
        servers.drop_database(name).await?;
    }
    Ok(Round {
        cpu_percent: percent(used),
        postgres_percent: percent(postgres),
        peak_rss_mib,
        connections,
        p50: flow.latencies(|number| number > paced.total / 5).p50,
    })
}
