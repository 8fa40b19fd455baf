//! The table for people and `results.json` for programs.

use std::{fmt::Write as _, io::Write as _, path::PathBuf};

use anyhow::Context;
use serde_json::{Map, Value, json};

use crate::{backlog::PAYLOAD_BYTES, config::Config, machine::Machine};

/// Every figure that may be reported: key in `results.json`, words in the table, and what to reach.
const FIGURES: &[Figure] = &[
    Figure { key: "drain_ratio", words: "drain / async-nats from memory", goal: Goal::AtLeast(0.85) },
    Figure {
        key: "drain_held_snapshot_ratio",
        words: "drain, old snapshot held / free",
        goal: Goal::AtLeast(0.95),
    },
    Figure { key: "drain_ordered_ratio", words: "drain, ordering keys / async-nats", goal: Goal::None },
    Figure {
        key: "relay_wal_bytes_per_message",
        words: "WAL of the relay, bytes a message",
        goal: Goal::AtMost(2.0),
    },
    Figure { key: "relay_rss_mib", words: "resident memory of the relay, MiB", goal: Goal::AtMost(40.0) },
    Figure {
        key: "drain_relay_cpu_us_per_message",
        words: "CPU of the relay, us a message",
        goal: Goal::None,
    },
    Figure { key: "latency_p50_ms", words: "commit to delivery, p50, ms", goal: Goal::AtMost(5.0) },
    Figure { key: "latency_p99_ms", words: "commit to delivery, p99, ms", goal: Goal::AtMost(15.0) },
    Figure {
        key: "latency_relay_cpu_percent",
        words: "CPU of the relay then, % of a core",
        goal: Goal::None,
    },
    Figure {
        key: "relay_idle_cpu_percent",
        words: "CPU of an idle relay, % of a core",
        goal: Goal::AtMost(1.0),
    },
    Figure { key: "inbox_ratio", words: "inbox / bare handler, 16 in flight", goal: Goal::AtLeast(0.85) },
    Figure { key: "inbox_ratio_1", words: "inbox / bare handler, 1 in flight", goal: Goal::None },
    Figure { key: "inbox_ratio_64", words: "inbox / bare handler, 64 in flight", goal: Goal::None },
    Figure { key: "enqueue_ratio", words: "enqueue / plain INSERT, 16 producers", goal: Goal::AtLeast(0.90) },
];

struct Figure {
    key: &'static str,
    words: &'static str,
    goal: Goal,
}

#[derive(Clone, Copy)]
enum Goal {
    AtLeast(f64),
    AtMost(f64),
    None,
}

/// Collects what was measured.
#[derive(Debug)]
pub(crate) struct Report {
    machine: Machine,
    sizes: Value,
    /// In the order of the table.
    rows: Vec<(&'static str, f64, String)>,
    details: Map<String, Value>,
    rates: Map<String, Value>,
}

impl Report {
    pub(crate) fn new(machine: Machine, config: &Config) -> Self {
        let sizes = json!({
            "rounds": config.rounds,
            "messages": config.messages,
            "payload_bytes": PAYLOAD_BYTES,
            "seconds": config.duration.as_secs(),
        });
        Self { machine, sizes, rows: Vec::new(), details: Map::new(), rates: Map::new() }
    }

    /// One figure: the median of the rounds, and what stands behind it.
    pub(crate) fn add(&mut self, key: &'static str, median: f64, behind: String) {
        self.rows.push((key, median, behind));
    }

    /// A figure that stands behind another one: in `results.json`, with no line of its own in the table.
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
        for (key, value, behind) in &self.rows {
            let known = FIGURES.iter().find(|figure| figure.key == *key);
            let (words, goal) = known.map_or((*key, Goal::None), |figure| (figure.words, figure.goal));
            let (goal, mark) = match goal {
                Goal::AtLeast(least) => (format!(">= {least:.2}"), if *value >= least { ' ' } else { '!' }),
                Goal::AtMost(most) => (format!("<= {most}"), if *value <= most { ' ' } else { '!' }),
                Goal::None => ("-".to_owned(), ' '),
            };
            let _ = writeln!(table, "{words:<36} {value:>8.2} {goal:>9} {mark} {behind}");
        }
        table
    }

    /// Writes `bench/results.json` in the target directory: flat keys, then rates, sizes and machine.
    pub(crate) fn write(&self) -> anyhow::Result<()> {
        let mut results = self.details.clone();
        for (key, value, _) in &self.rows {
            results.insert((*key).to_owned(), json!(round(*value)));
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
fn directory() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let target =
        program.parent().and_then(|profile| profile.parent()).context("find the target directory")?;
    Ok(target.join("bench"))
}
