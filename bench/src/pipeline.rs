//! Orders from their transaction to their effect, beside queues in the same PostgreSQL: River and
//! Graphile Worker.
//!
//! Each way has a database, a stream and a program of its own, which bench/peers describes. Its
//! producers commit an order with its job or message in one transaction, and its handlers insert
//! one effect for each order. After a warm-up it carries `MESSAGES` orders as fast as it can, and
//! then orders at fixed rates for `DURATION_SECONDS` each. Every second round goes the other way
//! round. At the end the orders and effects are counted: each order has one effect, or the run
//! fails.
//!
//! Processor time is that of all of PostgreSQL, and of the programs: the way's own, the relay and
//! nats-server. The size is of all tables except orders and effects, after the orders of full
//! speed.

mod shop;

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use tokio::process::Command;

use self::shop::{RATES, Sale, Shop};
use crate::{
    config::Config,
    report::{self, Report},
    servers::Servers,
    statistics::median,
};

#[derive(Clone, Copy, Debug)]
struct Way {
    name: &'static str,
    /// `orders-go` of bench/peers/orders, `orders-graphile` of bench/peers/graphile, or
    /// `orders-rust`, which lies beside this program.
    program: &'static str,
    is_oncebox: bool,
    /// Effects are told apart by a unique index.
    is_unique: bool,
}

const fn queue(name: &'static str, program: &'static str, is_unique: bool) -> Way {
    Way { name, program, is_oncebox: false, is_unique }
}

const fn oncebox(name: &'static str, program: &'static str) -> Way {
    Way { name, program, is_oncebox: true, is_unique: false }
}

/// The first is the peer of all ratios, the second the one that has the goals.
const WAYS: [Way; 7] = [
    queue("river", "orders-go", false),
    oncebox("go", "orders-go"),
    oncebox("go-set", "orders-go"),
    oncebox("rust", "orders-rust"),
    oncebox("rust-set", "orders-rust"),
    queue("river-unique", "orders-go", true),
    queue("graphile", "orders-graphile", true),
];

/// A way in one round.
#[derive(Debug)]
struct Turn {
    /// At each of [`RATES`].
    sales: Vec<Sale>,
    mib: f64,
}

type Value = fn(&Turn) -> f64;

/// The ratios of the table.
const RATIOS: [(&str, Value); 7] = [
    ("pipeline_rate_ratio", |turn| turn.sales[0].rate),
    ("pipeline_postgres_ratio", |turn| turn.sales[0].postgres),
    ("pipeline_200_p50_ratio", |turn| turn.sales[1].p50),
    ("pipeline_200_p99_ratio", |turn| turn.sales[1].p99),
    ("pipeline_2000_p50_ratio", |turn| turn.sales[2].p50),
    ("pipeline_2000_p99_ratio", |turn| turn.sales[2].p99),
    ("pipeline_size_ratio", |turn| turn.mib),
];

/// Takes all rounds.
pub(crate) async fn measure(servers: &Servers, config: &Config, report: &mut Report) -> Result<()> {
    let peers = report::directory()?.join("peers");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/prepare.sh");
    let prepared = Command::new(script).arg(&peers).status().await.context("prepare the peers")?;
    ensure!(prepared.success(), "{script}: {prepared}");
    let mut turns: [Vec<Turn>; WAYS.len()] = Default::default();
    for round in 0..config.rounds {
        for step in 0..WAYS.len() {
            let index = if round % 2 == 0 { step } else { WAYS.len() - 1 - step };
            let name = WAYS[index].name;
            let turn = take(servers, config, &peers, WAYS[index]).await.context(name)?;
            for (rate, sale) in RATES.into_iter().zip(&turn.sales) {
                tracing::info!("{name}, {rate}: {sale:.1?}");
            }
            tracing::info!("{name}: {:.1} MiB", turn.mib);
            turns[index].push(turn);
        }
    }
    summarise(report, &turns);
    Ok(())
}

async fn take(servers: &Servers, config: &Config, peers: &Path, way: Way) -> Result<Turn> {
    let mut shop = Shop::open(servers, peers, way).await?;
    shop.warm_up(config.messages / 10).await.context("warm up")?;
    let (mut sales, mut mib) = (Vec::new(), 0.0);
    for rate in RATES {
        let seconds = usize::try_from(config.duration.as_secs())?;
        let orders = if rate == 0 { config.messages } else { usize::try_from(rate)? * seconds };
        sales.push(shop.sell(orders, rate).await.with_context(|| format!("{orders} orders at {rate}/s"))?);
        if rate == 0 {
            mib = shop.mib().await?;
        }
    }
    shop.close(servers).await?;
    Ok(Turn { sales, mib })
}

fn summarise(report: &mut Report, turns: &[Vec<Turn>; WAYS.len()]) {
    for (way, turns) in WAYS.iter().zip(turns) {
        for (index, rate) in RATES.into_iter().enumerate() {
            for (what, value) in Sale::VALUES {
                let value = median(turns.iter().map(|turn| value(&turn.sales[index])));
                report.detail(&format!("pipeline_{}_{rate}_{what}", way.name), value);
            }
        }
        report.detail(&format!("pipeline_{}_mib", way.name), median(turns.iter().map(|turn| turn.mib)));
    }
    for (key, value) in RATIOS {
        // Of each round, since the machine moves both sides.
        let ratios = turns
            .iter()
            .map(|own| median(own.iter().zip(&turns[0]).map(|(turn, river)| value(turn) / value(river))));
        let ratios: Vec<f64> = ratios.collect();
        let others = WAYS.iter().zip(&ratios).skip(2);
        let others: Vec<String> = others.map(|(way, ratio)| format!("{} {ratio:.2}", way.name)).collect();
        let river = median(turns[0].iter().map(value));
        report.add(key, ratios[1], format!("river {river:.1}; {}", others.join(", ")));
    }
}
