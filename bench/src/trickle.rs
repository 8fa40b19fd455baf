//! The cost of a message on an ordinary day: latency, and the load on PostgreSQL, at ten to a
//! thousand messages a second.
//!
//! Three carriers take turns in one run, each with a database and a stream of its own: the relay as
//! an operator runs it; `rival`, the loop that a team writes by hand; and a producer that publishes
//! by itself after COMMIT, which loses messages when it crashes in between and is the floor of any
//! latency. Every message has a transaction and an ordering key of its own. PostgreSQL's processor
//! time is of the carrier's own backends, read from `/proc`, without the producers'.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    backends,
    config::Config,
    relay::Relay,
    report::Report,
    servers::{Servers, within},
    statistics::median,
    traffic::{self, Latencies, Plan},
};

const RATES: [u32; 3] = [1_000, 100, 10];
const PRODUCERS: usize = 16;
const DELIVERY_LIMIT: Duration = Duration::from_secs(30);

/// Who takes a message from its transaction to the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Carrier {
    Relay,
    Rival,
    Producer,
}

const CARRIERS: [Carrier; 3] = [Carrier::Relay, Carrier::Rival, Carrier::Producer];

#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    pub(crate) latencies: Latencies,
    /// The processor time of the carrier's backends, in per cent of a core.
    pub(crate) postgres_percent: f64,
    /// The processor time of the carrier itself.
    own_percent: f64,
}

/// Takes all rounds.
pub(crate) async fn measure(servers: &Servers, config: &Config, report: &mut Report) -> anyhow::Result<()> {
    for rate in RATES {
        // The producer that publishes by itself is the floor where latency is judged, at the
        // highest rate.
        let (carriers, length) = if rate == RATES[0] {
            (&CARRIERS[..], config.duration)
        } else {
            (&CARRIERS[..2], config.duration / 2)
        };
        let mut rounds: [Vec<Round>; 3] = Default::default();
        for turn in 0..config.rounds {
            for step in 0..carriers.len() {
                let index = if turn % 2 == 0 { step } else { carriers.len() - 1 - step };
                let round = take(servers, carriers[index], rate, length).await?;
                tracing::info!(
                    "trickle {rate}/s, {:?}: p50 {:.2} ms, p99 {:.2} ms, PostgreSQL {:.1} %, itself {:.1} %",
                    CARRIERS[index],
                    round.latencies.p50,
                    round.latencies.p99,
                    round.postgres_percent,
                    round.own_percent
                );
                rounds[index].push(round);
            }
        }
        tell(report, rate, &rounds);
    }
    Ok(())
}

/// One of the figures of a round.
type Value = fn(&Round) -> f64;

fn tell(report: &mut Report, rate: u32, [relay, rival, producer]: &[Vec<Round>; 3]) {
    let of = |rounds: &[Round], value: Value| median(rounds.iter().map(value));
    let (p50, p99): (Value, Value) = (|r| r.latencies.p50, |r| r.latencies.p99);
    let (postgres, own): (Value, Value) = (|r| r.postgres_percent, |r| r.own_percent);
    let all = [("relay", relay), ("rival", rival), ("producer", producer)];
    for (name, rounds) in all.into_iter().filter(|(_, rounds)| !rounds.is_empty()) {
        for (what, value) in
            [("p50_ms", p50), ("p99_ms", p99), ("postgres_percent", postgres), ("own_percent", own)]
        {
            report.detail(&format!("trickle_{rate}_{name}_{what}"), of(rounds, value));
        }
    }
    let ratios: [(&str, Value, &str); 3] =
        [("p50", p50, "ms"), ("p99", p99, "ms"), ("postgres", postgres, "% of a core")];
    for (what, value, unit) in ratios {
        let (relay, rival) = (of(relay, value), of(rival, value));
        let behind = format!("relay {relay:.2} {unit}, loop {rival:.2}");
        report.add(&format!("trickle_{rate}_{what}_ratio"), relay / rival, behind);
    }
    if rate != RATES[0] {
        return;
    }
    report.add("latency_p50_ms", of(relay, p50), "1,000 messages/s".to_owned());
    report.add("latency_p99_ms", of(relay, p99), "1,000 messages/s".to_owned());
    report.add(
        "latency_relay_cpu_percent",
        of(relay, own),
        format!("user and kernel time, at 1,000 messages/s; of the loop {:.2}", of(rival, own)),
    );
    report.add("trickle_p50_producer_ratio", of(relay, p50) / of(producer, p50), String::new());
    report.add("trickle_p99_producer_ratio", of(relay, p99) / of(producer, p99), String::new());
}

async fn take(servers: &Servers, carrier: Carrier, rate: u32, length: Duration) -> anyhow::Result<Round> {
    let database = servers.migrated().await?;
    servers.session(&database).await?.batch_execute(include_str!("sql/rival_table.sql")).await?;
    let round = take_in(servers, &database, carrier, rate, length, String::new()).await?;
    servers.drop_database(&database).await?;
    Ok(round)
}

/// A round of the relay in a database that has nothing due; `prefix` makes its keys new.
pub(crate) async fn relay_in(
    servers: &Servers,
    database: &str,
    rate: u32,
    length: Duration,
    prefix: String,
) -> anyhow::Result<Round> {
    take_in(servers, database, Carrier::Relay, rate, length, prefix).await
}

async fn take_in(
    servers: &Servers,
    database: &str,
    carrier: Carrier,
    rate: u32,
    length: Duration,
    prefix: String,
) -> anyhow::Result<Round> {
    let mut stream = servers.fresh_stream().await?;
    let producers = servers.sessions(database, PRODUCERS).await?;
    let mut process = match carrier {
        Carrier::Relay => Some(Relay::start(servers, database)?),
        Carrier::Rival => Some(Relay::start_rival(servers, database)?),
        Carrier::Producer => None,
    };
    let statement = match carrier {
        Carrier::Relay => servers.schema.sql(include_str!("sql/enqueue_ordered.sql")),
        Carrier::Rival | Carrier::Producer => include_str!("sql/rival_insert.sql").to_owned(),
    };
    let publishes = match carrier {
        Carrier::Producer => Some(async_nats::jetstream::new(servers.nats().await?)),
        Carrier::Relay | Carrier::Rival => None,
    };
    let interval = Duration::from_secs(1) / rate;
    let count = |length: Duration| usize::try_from(length.as_micros() / interval.as_micros());
    let (warm_up, total) = (count(length / 5)?, count(length / 5 + length)?);
    let mut plan = Plan { prefix, statement, publishes, interval, total, start: Instant::now() };
    traffic::probe(&producers[0], &plan).await?;
    within("the first message to arrive", DELIVERY_LIMIT, async || {
        process.as_mut().map_or(Ok(()), Relay::check)?;
        Ok((stream.info().await?.state.messages == 1).then_some(()))
    })
    .await?;
    let admin = servers.admin().await?;
    let carriers = backends::of_carrier(&admin, database).await?;
    let own_before = process.as_ref().map_or(Ok(Duration::ZERO), Relay::cpu)?;
    plan.start = Instant::now() + Duration::from_millis(50);
    let flow = traffic::flow(producers, &stream, &plan).await?;
    let elapsed = plan.start.elapsed().as_secs_f64();
    let own = process.as_ref().map_or(Ok(Duration::ZERO), Relay::cpu)? - own_before;
    let postgres = carriers.cpu_since(&admin).await?;
    if let Some(process) = process {
        process.stop().await?;
    }
    servers.delete_stream().await?;
    let percent = |time: Duration| 100.0 * time.as_secs_f64() / elapsed;
    let latencies = flow.latencies(|number| number > warm_up);
    Ok(Round { latencies, postgres_percent: percent(postgres), own_percent: percent(own) })
}
