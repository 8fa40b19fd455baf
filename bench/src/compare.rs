//! Two programs by turns: the cost or gain of a change, in minutes.
//!
//! Each program is a `bench` of its own build, beside its own `oncebox`, and measures with servers
//! of its own. A round runs both once, in an order that alternates, so that a machine that slowly
//! becomes faster or slower favours none. The report has the median of each side, and the median of
//! the rounds' ratios, which a noisy hour moves least.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io::Write as _,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, ensure};
use serde_json::Value;
use tokio::process::Command;

use crate::{config::Config, statistics::median};

/// The programs, the older one first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) old: PathBuf,
    pub(crate) new: PathBuf,
}

/// The figures of one run, by their names.
type Figures = BTreeMap<String, f64>;

/// Takes all rounds, and prints the table.
pub(crate) async fn run(pair: &Pair, config: &Config) -> anyhow::Result<()> {
    let (old, new) = (results_of(&pair.old)?, results_of(&pair.new)?);
    ensure!(
        old != new,
        "both programs write {}: build one of them with another CARGO_TARGET_DIR",
        old.display()
    );
    let mut rounds = Vec::new();
    for number in 0..config.rounds {
        tracing::info!("round {} of {}", number + 1, config.rounds);
        let measure_old = async || measure(&pair.old, &old, config).await;
        let measure_new = async || measure(&pair.new, &new, config).await;
        rounds.push(if number.is_multiple_of(2) {
            let figures = measure_old().await?;
            (figures, measure_new().await?)
        } else {
            let figures = measure_new().await?;
            (measure_old().await?, figures)
        });
    }
    std::io::stdout().write_all(table(&rounds).as_bytes()).context("print the table")
}

/// Where that program writes its results: `bench` of its target directory.
fn results_of(program: &Path) -> anyhow::Result<PathBuf> {
    let program =
        program.canonicalize().with_context(|| format!("find the program {}", program.display()))?;
    let target = program.parent().and_then(Path::parent);
    Ok(target
        .with_context(|| format!("find the target directory of {}", program.display()))?
        .join("bench/results.json"))
}

async fn measure(program: &Path, results: &Path, config: &Config) -> anyhow::Result<Figures> {
    let names = config.measurements.iter().map(ToString::to_string);
    let mut command = Command::new(program);
    command.args(names).env("ITERATIONS", "1").stdin(Stdio::null()).stdout(Stdio::null());
    let status = command.kill_on_drop(true).status().await;
    let status = status.with_context(|| format!("start {}", program.display()))?;
    ensure!(status.success(), "{} ended with {status}", program.display());
    let text = std::fs::read_to_string(results).with_context(|| format!("read {}", results.display()))?;
    Ok(figures(&serde_json::from_str(&text)?))
}

/// Every number, and every rate that it is made of.
fn figures(results: &Value) -> Figures {
    let numbers = |value: &Value| {
        let fields = value.as_object().into_iter().flatten();
        Figures::from_iter(fields.filter_map(|(name, value)| Some((name.clone(), value.as_f64()?))))
    };
    let rates = numbers(&results["rates_per_second"]).into_iter();
    let rates = rates.map(|(name, rate)| (format!("{name}, 1/s"), rate));
    numbers(results).into_iter().chain(rates).collect()
}

/// The figures of both sides in each round.
fn table(rounds: &[(Figures, Figures)]) -> String {
    let mut table = format!("{:<36} {:>10} {:>10} {:>9}\n", "median of rounds", "old", "new", "new / old");
    let names = rounds.first().into_iter().flat_map(|(old, _)| old.keys());
    for name in names
        .filter(|name| rounds.iter().all(|(old, new)| old.contains_key(*name) && new.contains_key(*name)))
    {
        let side =
            |of: fn(&(Figures, Figures)) -> &Figures| median(rounds.iter().map(|round| of(round)[name]));
        let ratio = median(rounds.iter().map(|(old, new)| new[name] / old[name]));
        let (old, new) = (side(|round| &round.0), side(|round| &round.1));
        let _ = writeln!(table, "{name:<36} {old:>10.2} {new:>10.2} {ratio:>9.2}");
    }
    table
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{figures, table};

    #[test]
    fn a_table_has_what_both_sides_measure_in_each_round() {
        let of = |rate: f64, gone: &str| {
            figures(
                &json!({ "drain_ratio": rate, gone: 1, "machine": {}, "rates_per_second": { "drain": 7 } }),
            )
        };
        let rounds =
            [(of(0.5, "a"), of(1.0, "b")), (of(0.5, "a"), of(1.5, "a")), (of(1.0, "a"), of(0.5, "a"))];
        let lines: Vec<String> = table(&rounds)
            .lines()
            .skip(1)
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(lines, ["drain, 1/s 7.00 7.00 1.00", "drain_ratio 0.50 1.00 2.00"]);
    }
}
