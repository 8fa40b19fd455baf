//! A relay beside each pod: the cost of 1, 5, 20 and 50 relays of one outbox, idle and at a
//! thousand messages a second, and their effect on producers.
//!
//! PostgreSQL's processor time is the sum over all relays' backends. Producers then enqueue as fast
//! as they can, each its next message when the last is committed: that is their throughput.

use std::time::Duration;

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

const COUNTS: [usize; 4] = [1, 5, 20, 50];
const RATE: u32 = 1_000;
const PRODUCERS: usize = 16;
const DELIVERY_LIMIT: Duration = Duration::from_secs(60);
/// A relay that has just started works for a while before it stands by.
const CALM: Duration = Duration::from_secs(8);

#[derive(Clone, Copy, Debug)]
struct Round {
    /// In per cent of a core, like the others.
    idle_postgres: f64,
    idle_own: f64,
    postgres: f64,
    own: f64,
    connections: usize,
    p50: f64,
    /// The commits of producers a second, at most.
    produced: f64,
}

/// One of the figures of a round.
type Value = fn(&Round) -> f64;

/// Takes all rounds.
pub(crate) async fn measure(servers: &Servers, config: &Config, report: &mut Report) -> anyhow::Result<()> {
    let mut rounds: [Vec<Round>; COUNTS.len()] = Default::default();
    for turn in 0..config.rounds {
        for step in 0..COUNTS.len() {
            let index = if turn % 2 == 0 { step } else { COUNTS.len() - 1 - step };
            let round = take(servers, COUNTS[index], config.duration).await?;
            tracing::info!("fleet of {}: {round:?}", COUNTS[index]);
            rounds[index].push(round);
        }
    }
    let of = |index: usize, value: Value| median(rounds[index].iter().map(value));
    let values: [(&str, Value); 7] = [
        ("idle_postgres_percent", |round| round.idle_postgres),
        ("idle_own_percent", |round| round.idle_own),
        ("postgres_percent", |round| round.postgres),
        ("own_percent", |round| round.own),
        #[expect(clippy::cast_precision_loss, reason = "a few hundred")]
        ("connections", |round| round.connections as f64),
        ("p50_ms", |round| round.p50),
        ("produced_per_second", |round| round.produced),
    ];
    for (index, count) in COUNTS.into_iter().enumerate() {
        for (name, value) in values {
            report.detail(&format!("fleet_{count}_{name}"), of(index, value));
        }
    }
    let last = COUNTS.len() - 1;
    let both = |value: Value| (of(last, value), of(0, value));
    let (many, one) = both(|round| round.postgres);
    report.add("fleet_postgres_ratio", many / one, format!("{many:.1} % and {one:.1} % at {RATE}/s"));
    let (many, one) = both(|round| round.idle_postgres);
    report.add("fleet_idle_postgres_percent", many, format!("one relay {one:.2} %"));
    let (many, one) = both(|round| round.produced);
    report.add("fleet_producers_ratio", many / one, format!("{many:.0}/s and {one:.0}/s"));
    Ok(())
}

async fn take(servers: &Servers, count: usize, length: Duration) -> anyhow::Result<Round> {
    let database = servers.migrated().await?;
    let mut stream = servers.fresh_stream().await?;
    let mut relays = Vec::new();
    for _ in 0..count {
        relays.push(Relay::start(servers, &database)?);
    }
    let plan = |prefix: &str, interval: Duration| -> anyhow::Result<Plan> {
        let total = usize::try_from(length.as_micros() / (Duration::from_secs(1) / RATE).as_micros())?;
        let statement = servers.schema.sql(include_str!("sql/enqueue_ordered.sql"));
        let start = Instant::now() + Duration::from_millis(50);
        Ok(Plan { prefix: prefix.to_owned(), statement, publishes: None, interval, total, start })
    };
    let probing = servers.session(&database).await?;
    traffic::probe(&probing, &plan("paced-", Duration::ZERO)?).await?;
    within("the first message to arrive", DELIVERY_LIMIT, async || {
        relays.iter_mut().try_for_each(Relay::check)?;
        Ok((stream.info().await?.state.messages == 1).then_some(()))
    })
    .await?;
    sleep(CALM).await;
    let admin = servers.admin().await?;
    let own = || relays.iter().map(Relay::cpu).sum::<anyhow::Result<Duration>>();

    let (carriers, before, start) = (backends::of_carrier(&admin, &database).await?, own()?, Instant::now());
    sleep(length / 2).await;
    let elapsed = start.elapsed().as_secs_f64();
    let percent = |time: Duration, elapsed: f64| 100.0 * time.as_secs_f64() / elapsed;
    let idle_own = percent(own()? - before, elapsed);
    let idle_postgres = percent(carriers.cpu_since(&admin).await?, elapsed);

    let (carriers, before, start) = (backends::of_carrier(&admin, &database).await?, own()?, Instant::now());
    let connections = carriers.count();
    let paced = plan("paced-", Duration::from_secs(1) / RATE)?;
    let flow = traffic::flow(servers.sessions(&database, PRODUCERS).await?, &stream, &paced).await?;
    let elapsed = start.elapsed().as_secs_f64();
    let busy_own = percent(own()? - before, elapsed);
    let postgres = percent(carriers.cpu_since(&admin).await?, elapsed);

    stream.purge().await?;
    traffic::probe(&probing, &plan("fast-", Duration::ZERO)?).await?;
    let fast = plan("fast-", Duration::ZERO)?;
    let fast = traffic::flow(servers.sessions(&database, PRODUCERS).await?, &stream, &fast).await?;
    for relay in relays {
        relay.stop().await?;
    }
    drop(probing);
    servers.delete_stream().await?;
    servers.drop_database(&database).await?;
    Ok(Round {
        idle_postgres,
        idle_own,
        postgres,
        own: busy_own,
        connections,
        p50: flow.latencies(|number| number > paced.total / 5).p50,
        produced: fast.produced,
    })
}
