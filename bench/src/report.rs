//! The table for people and `results.json` for programs.

use std::{fmt::Write as _, io::Write as _, path::PathBuf};

use anyhow::Context;
use serde_json::{Map, Value, json};

use crate::{backlog::PAYLOAD_BYTES, config::Config, machine::Machine};

/// Every figure that may be reported: key in `results.json`, words in the table, and goal.
const FIGURES: &[Figure] = &[
    figure("drain_ratio", "drain / async-nats from memory", Goal::AtLeast(0.90)),
    figure("drain_held_snapshot_ratio", "drain, old snapshot held / free", Goal::AtLeast(0.95)),
    figure("drain_ordered_ratio", "drain, ordering keys / async-nats", Goal::None),
    figure("relay_wal_bytes_per_message", "WAL of the relay, bytes a message", Goal::AtMost(2.0)),
    figure("relay_rss_mib", "resident memory of the relay, MiB", Goal::AtMost(40.0)),
    figure("drain_relay_cpu_us_per_message", "CPU of the relay, us a message", Goal::None),
    figure("latency_p50_ms", "commit to delivery, p50, ms", Goal::AtMost(5.0)),
    figure("latency_p99_ms", "commit to delivery, p99, ms", Goal::AtMost(15.0)),
    figure("latency_relay_cpu_percent", "CPU of the relay then, % of a core", Goal::None),
    figure("trickle_1000_p50_ratio", "p50 at 1,000/s, relay / loop by hand", Goal::AtMost(0.7)),
    figure("trickle_1000_p99_ratio", "p99 at 1,000/s, relay / loop by hand", Goal::AtMost(0.9)),
    figure("trickle_1000_postgres_ratio", "CPU of PostgreSQL at 1,000/s, relay / loop", Goal::AtMost(1.0)),
    figure("trickle_100_p50_ratio", "p50 at 100/s, relay / loop by hand", Goal::AtMost(1.0)),
    figure("trickle_100_p99_ratio", "p99 at 100/s, relay / loop by hand", Goal::AtMost(1.0)),
    figure("trickle_100_postgres_ratio", "CPU of PostgreSQL at 100/s, relay / loop", Goal::AtMost(1.0)),
    figure("trickle_10_p50_ratio", "p50 at 10/s, relay / loop by hand", Goal::AtMost(1.0)),
    figure("trickle_10_p99_ratio", "p99 at 10/s, relay / loop by hand", Goal::AtMost(1.0)),
    figure("trickle_10_postgres_ratio", "CPU of PostgreSQL at 10/s, relay / loop", Goal::AtMost(1.0)),
    figure("trickle_p50_producer_ratio", "p50, relay / publishing after COMMIT", Goal::AtMost(2.0)),
    figure("trickle_p99_producer_ratio", "p99, relay / publishing after COMMIT", Goal::AtMost(3.0)),
    figure("mixed_p50_ratio", "p50 of others, beside a hot key / without", Goal::None),
    figure("mixed_p99_ratio", "p99 of others, beside a hot key / without", Goal::AtMost(2.0)),
    figure("fleet_postgres_ratio", "CPU of PostgreSQL, 50 relays / one", Goal::AtMost(1.5)),
    figure("fleet_idle_postgres_percent", "the same, 50 idle relays, % of a core", Goal::None),
    figure("fleet_producers_ratio", "producers beside 50 relays / one", Goal::AtLeast(0.95)),
    figure("databases_rss_mib", "one relay, 100 idle databases: peak MiB", Goal::AtMost(100.0)),
    figure("databases_cpu_percent", "the same: CPU, % of a core", Goal::AtMost(5.0)),
    figure("databases_connections", "the same: connections to each", Goal::AtMost(2.0)),
    figure("console_page_ms", "console, 50 databases: slowest page, ms", Goal::None),
    figure("console_load_ratio", "PostgreSQL's CPU, 50 open pages / one", Goal::AtMost(1.2)),
    figure("databases_p50_ratio", "p50 at 1,000/s, ten databases / one", Goal::AtMost(1.5)),
    figure("relay_idle_cpu_percent", "CPU of an idle relay, % of a core", Goal::AtMost(1.0)),
    figure("inbox_deferred_ratio", "inbox, deferred / bare, 16 in flight", Goal::AtLeast(0.90)),
    figure("inbox_deferred_ratio_1", "inbox, deferred / bare, 1 in flight", Goal::AtLeast(0.90)),
    figure("inbox_deferred_ratio_64", "inbox, deferred / bare, 64 in flight", Goal::AtLeast(0.90)),
    figure("inbox_ratio", "inbox / bare handler, 16 in flight", Goal::AtLeast(0.90)),
    figure("inbox_ratio_1", "inbox / bare handler, 1 in flight", Goal::AtLeast(0.90)),
    figure("inbox_ratio_64", "inbox / bare handler, 64 in flight", Goal::AtLeast(0.90)),
    figure("inbox_run_ratio", "Inbox::run alone / bare, 16 in flight", Goal::None),
    figure("inbox_by_hand_ratio", "inbox / inbox by hand, 16 in flight", Goal::None),
    figure("inbox_added_p50_ms", "added by the inbox, p50, ms", Goal::AtMost(0.5)),
    figure("http_replay_p99_ms", "HTTP replay at 1,000/s, p99, ms", Goal::AtMost(2.0)),
    figure("http_hot_key_seconds", "HTTP, 10,000 at once, one key, s", Goal::None),
    figure("http_hot_key_runs", "HTTP, 10,000 at once, one key: runs", Goal::AtMost(1.0)),
    figure("http_hot_key_connections", "HTTP, one key: connections", Goal::AtMost(2.0)),
    figure("inbox_set_ratio", "batches of 64, as sets / bare handler", Goal::AtLeast(5.0)),
    figure("inbox_batch_ratio", "batches of 64, a savepoint each / bare", Goal::None),
    figure("driver_sqlx_ratio", "inbox over sqlx / over tokio-postgres", Goal::AtLeast(0.90)),
    figure("driver_sqlx_bare_ratio", "inbox over sqlx / bare sqlx", Goal::None),
    figure("driver_sqlx_alone_ratio", "bare sqlx / bare tokio-postgres", Goal::None),
    figure("driver_sea_orm_ratio", "inbox over SeaORM / over tokio-postgres", Goal::None),
    figure("driver_sea_orm_bare_ratio", "inbox over SeaORM / bare SeaORM", Goal::None),
    figure("driver_sea_orm_alone_ratio", "bare SeaORM / bare tokio-postgres", Goal::None),
    figure("driver_diesel_ratio", "inbox over Diesel / over tokio-postgres", Goal::None),
    figure("driver_diesel_bare_ratio", "inbox over Diesel / bare Diesel", Goal::None),
    figure("driver_diesel_alone_ratio", "bare Diesel / bare tokio-postgres", Goal::None),
    figure("inbox_duplicate_ratio", "duplicates / first deliveries", Goal::AtLeast(2.0)),
    figure("gate_copies_ratio", "copies in flight, with the gate / without", Goal::AtLeast(1.1)),
    figure("gate_postgres_ratio", "CPU of PostgreSQL a copy, with / without", Goal::AtMost(0.9)),
    figure("drain_parked_ratio", "drain, 100,000 parked / none", Goal::AtLeast(0.97)),
    figure("drain_scraped_ratio", "drain, scraped / not scraped", Goal::AtLeast(0.97)),
    figure("drain_large_ratio", "drain at 10 M messages / at 100,000", Goal::AtLeast(0.95)),
    figure("scrape_large_ms", "a scrape at 10 M messages, ms", Goal::AtMost(10.0)),
    figure("inboxes_ms", "counts of 100 inboxes at 10 M keys, ms", Goal::AtMost(10.0)),
    figure("publish_pipelined_no_keys_ratio", "drain, pipelined / async-nats", Goal::AtLeast(0.90)),
    figure("publish_pipelined_thousand_keys_ratio", "the same, 1,000 ordering keys", Goal::None),
    figure("publish_pipelined_one_key_ratio", "the same, one ordering key", Goal::None),
    figure("publish_atomic_no_keys_ratio", "drain, atomic batches / async-nats", Goal::None),
    figure("publish_atomic_thousand_keys_ratio", "the same, 1,000 ordering keys", Goal::None),
    figure("publish_atomic_one_key_ratio", "the same, one ordering key", Goal::AtLeast(0.50)),
    figure("publish_atomic_durable_ratio", "sync_interval always, atomic / pipelined", Goal::AtLeast(10.0)),
    figure("loss_repair_seconds", "a loss of 100,000 messages sent again, s", Goal::AtMost(3.0)),
    figure("loss_check_ms", "a check of 100 lanes and 10 streams, ms", Goal::AtMost(50.0)),
    figure("loss_check_moved_ms", "a check after all lanes have moved, ms", Goal::AtMost(50.0)),
    figure("receipts_percent", "receipts, % of PostgreSQL's time in a drain", Goal::AtMost(2.0)),
    figure("large_relay_rss_mib", "relay putting 100 payloads of 32 MiB, MiB", Goal::AtMost(96.0)),
    figure("large_mib_per_second", "large payloads put into a bucket, MiB/s", Goal::None),
    figure("enqueue_all_ratio", "enqueue_all of 1,000 / enqueue, messages/s", Goal::AtLeast(5.0)),
    figure("enqueue_ratio", "enqueue / INSERT into a plain table, 16 producers", Goal::AtLeast(0.78)),
    figure("growth_enqueue_ratio", "the same with ROWS in both", Goal::AtLeast(0.90)),
    figure("growth_wal_ratio", "WAL a message, ROWS / empty", Goal::AtMost(1.3)),
    figure("growth_drain_ratio", "drain, ROWS settled / none", Goal::AtLeast(0.97)),
    figure("growth_trickle_ratio", "p50 at 1,000/s, none settled / ROWS", Goal::AtLeast(0.97)),
    figure("growth_trickle_postgres_ratio", "PostgreSQL's load then, none / ROWS", Goal::AtLeast(0.97)),
    figure("growth_claim_ratio", "an inbox, ROWS keys / none", Goal::AtLeast(0.97)),
    figure("growth_retention_wal_ratio", "retention, WAL: segment / DELETE", Goal::AtMost(0.02)),
    figure("growth_retention_time_ratio", "retention, time: segment / DELETE", Goal::AtMost(0.02)),
    figure("growth_turn_p99_ratio", "producers' p99, the ring turns / not", Goal::AtMost(1.2)),
    figure("growth_readers_p99_ratio", "the same, beside pg_dump and a snapshot", Goal::AtMost(1.2)),
    figure("growth_stall_ms", "the slowest message then, ms", Goal::AtMost(500.0)),
    figure("growth_size_ratio", "size after three rings / after one", Goal::AtMost(1.05)),
    figure("saga_rate", "sagas of three steps completed, 1/s", Goal::None),
    figure("saga_postgres_percent", "PostgreSQL then, % of a core", Goal::None),
    figure("saga_cost_ratio", "orchestrator / its transactions by hand", Goal::AtMost(1.5)),
    figure("saga_latency_ratio", "an idle saga / its six messages", Goal::AtMost(3.0)),
    figure("saga_peer_rate_ratio", "sagas / workflows of DBOS Transact", Goal::AtLeast(2.0)),
    figure("saga_peer_latency_ratio", "an idle saga / an idle workflow of DBOS", Goal::None),
    figure("saga_finished_ratio", "sagas, a million finished / none", Goal::AtLeast(0.95)),
    figure("saga_running_ratio", "sagas, 100,000 running / none", Goal::AtLeast(0.95)),
    figure("delayed_drain_ratio", "drain, delayed messages / ordinary", Goal::AtLeast(0.5)),
    figure("pipeline_rate_ratio", "orders/s end to end, Go client / River", Goal::AtLeast(2.0)),
    figure("pipeline_postgres_ratio", "CPU of PostgreSQL an order, the same", Goal::AtMost(0.5)),
    figure("pipeline_200_p50_ratio", "commit to handler at 200/s, p50", Goal::AtMost(0.4)),
    figure("pipeline_200_p99_ratio", "commit to handler at 200/s, p99", Goal::AtMost(0.5)),
    figure("pipeline_2000_p50_ratio", "commit to handler at 2,000/s, p50", Goal::AtMost(0.4)),
    figure("pipeline_2000_p99_ratio", "commit to handler at 2,000/s, p99", Goal::AtMost(0.5)),
    figure("pipeline_size_ratio", "tables after MESSAGES orders", Goal::None),
    figure("contracts_drain_ratio", "drain, checked by contracts / not", Goal::AtLeast(0.97)),
];

#[derive(Debug)]
struct Figure {
    key: &'static str,
    words: &'static str,
    goal: Goal,
}

const fn figure(key: &'static str, words: &'static str, goal: Goal) -> Figure {
    Figure { key, words, goal }
}

#[derive(Clone, Copy, Debug)]
enum Goal {
    AtLeast(f64),
    AtMost(f64),
    None,
}

/// Collects figures.
#[derive(Debug)]
pub(crate) struct Report {
    machine: Machine,
    sizes: Value,
    /// The rounds of each figure, and its remark; in the order of the table.
    rows: Vec<(&'static Figure, f64, String)>,
    details: Map<String, Value>,
    rates: Map<String, Value>,
}

impl Report {
    pub(crate) fn new(machine: Machine, config: &Config) -> Self {
        let sizes = json!({
            "rounds": config.rounds,
            "messages": config.messages,
            "backlog": config.backlog,
            "rows": config.rows,
            "payload_bytes": PAYLOAD_BYTES,
            "seconds": config.duration.as_secs(),
        });
        Self { machine, sizes, rows: Vec::new(), details: Map::new(), rates: Map::new() }
    }

    /// One figure: the median of the rounds, and its remark.
    ///
    /// # Panics
    /// When the key is not in [`FIGURES`]: a slip of the pen in a measurement.
    pub(crate) fn add(&mut self, key: &str, median: f64, behind: String) {
        let figure = FIGURES.iter().find(|figure| figure.key == key);
        self.rows.push((figure.expect("every key that is reported is in FIGURES"), median, behind));
    }

    /// A figure that explains another one: in `results.json`, with no line of its own in the table.
    pub(crate) fn detail(&mut self, key: &str, value: f64) {
        self.details.insert(key.to_owned(), json!(round(value)));
    }

    /// An absolute rate, per second. Depends on the machine; for orientation only.
    pub(crate) fn rate(&mut self, name: &str, per_second: f64) {
        self.rates.insert(name.to_owned(), json!(per_second.round()));
    }

    pub(crate) fn print(&self) -> anyhow::Result<()> {
        std::io::stdout().write_all(self.table().as_bytes()).context("print the table")
    }

    fn table(&self) -> String {
        let machine = &self.machine;
        let mut table = format!(
            "\n{} cores ({}), {} GiB, Linux {}, PostgreSQL {}, nats-server {}; medians, sizes {}\n\n",
            machine.cores,
            machine.processor,
            machine.memory_gib,
            machine.kernel,
            machine.postgresql,
            machine.nats_server,
            self.sizes
        );
        if !machine.optimised {
            table.push_str(
                "A debug build: these numbers show that the bench works, and nothing about speed.\n\n",
            );
        }
        let _ = writeln!(table, "{:<36} {:>8} {:>9}   behind it", "", "result", "to reach");
        for (figure, value, behind) in &self.rows {
            let (goal, is_reached) = match figure.goal {
                Goal::AtLeast(least) => (format!(">= {least:.2}"), *value >= least),
                Goal::AtMost(most) => (format!("<= {most}"), *value <= most),
                Goal::None => ("-".to_owned(), true),
            };
            let mark = if is_reached { ' ' } else { '!' };
            let _ = writeln!(table, "{:<36} {value:>8.2} {goal:>9} {mark} {behind}", figure.words);
        }
        table
    }

    /// Writes `bench/results.json` in the target directory: flat keys, then rates, sizes and
    /// machine.
    pub(crate) fn write(&self) -> anyhow::Result<()> {
        let mut results = self.details.clone();
        for (figure, value, _) in &self.rows {
            results.insert(figure.key.to_owned(), json!(round(*value)));
        }
        results.insert("rates_per_second".to_owned(), Value::Object(self.rates.clone()));
        results.insert("sizes".to_owned(), self.sizes.clone());
        results.insert("machine".to_owned(), serde_json::to_value(&self.machine)?);
        let directory = directory()?;
        std::fs::create_dir_all(&directory)?;
        let file = directory.join("results.json");
        let text = serde_json::to_string_pretty(&results)? + "\n";
        std::fs::write(&file, text).with_context(|| format!("write {}", file.display()))?;
        tracing::info!("written to {}", file.display());
        Ok(())
    }
}

/// Four decimals say more than any round can.
fn round(value: f64) -> f64 {
    (value * 10_000.0).round() / 10_000.0
}

/// `bench` in the target directory; this program lies in a profile's directory below it.
pub(crate) fn directory() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let target =
        program.parent().and_then(|profile| profile.parent()).context("find the target directory")?;
    Ok(target.join("bench"))
}
