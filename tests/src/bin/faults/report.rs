//! Progress, the table in the end, and the faults found.

use std::time::Duration;

use oncebox_tests::Counts;
use tokio::time::Instant;

/// The memory that a relay may have beside the pages of its program, of which those of the matrix,
/// not optimised, has 30 MiB. The benchmark holds the optimised one to 40 MiB with all its pages.
pub(crate) const MEMORY_MAX_MIB: f64 = 24.0;
/// The passes of one of these scenarios are set to be large (`database::LARGE_PASSES`), and the
/// other one has backlogs of hundreds of thousands.
const LARGE: (&[&str], f64) = (&["reader-suspended", "torture"], 40.0);

/// A scenario that has ended.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// The faults of the scenario, in numbers.
    pub(crate) faults: String,
    pub(crate) counts: Counts,
    /// Deliveries that the inbox answered from a stored outcome.
    pub(crate) absorbed: u64,
    pub(crate) memory_peak: u64,
    /// Losses, deaths, findings and copies without a cause.
    pub(crate) alarms: Vec<String>,
    /// The reason why the scenario could not be judged.
    pub(crate) broken: Option<String>,
}

impl Row {
    pub(crate) fn broken(name: &'static str, error: &anyhow::Error) -> Self {
        let broken = Some(format!("{error:#}"));
        let (faults, alarms) = (String::new(), Vec::new());
        Self { name, faults, counts: Counts::default(), absorbed: 0, memory_peak: 0, alarms, broken }
    }

    /// Not run, for a reason that the table shows.
    pub(crate) fn left_out(name: &'static str, reason: &str) -> Self {
        Self {
            faults: format!("left out: {reason}"),
            broken: None,
            ..Self::broken(name, &anyhow::anyhow!(""))
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "MiB with one decimal")]
    fn memory_mib(&self) -> f64 {
        self.memory_peak as f64 / f64::from(1 << 20)
    }

    /// The faults found, a line each.
    pub(crate) fn problems(&self) -> Vec<String> {
        if let Some(broken) = &self.broken {
            return vec![broken.clone()];
        }
        let Counts { messages, lost, doubled, reordered, invented } = self.counts;
        let counts = [
            (lost, "committed messages without effect, or not in the stream"),
            (doubled, "effects happened once too often"),
            (reordered, "messages came, or were handled, after a later one of their ordering key"),
            (invented, "messages were delivered that nobody committed"),
        ];
        let mut problems: Vec<String> = counts
            .into_iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        problems.extend(self.alarms.iter().map(|alarm| format!("a false alarm: {alarm}")));
        if messages == 0 && !self.faults.starts_with("left out") {
            problems.push("no message was committed, so nothing is shown".to_owned());
        }
        let most = if LARGE.0.contains(&self.name) { LARGE.1 } else { MEMORY_MAX_MIB };
        if self.memory_mib() > most {
            problems.push(format!("a relay had {:.1} MiB of its own, more than {most}", self.memory_mib()));
        }
        problems
    }
}

/// Says how a scenario goes.
#[derive(Debug)]
pub(crate) struct Teller {
    name: &'static str,
    started: Instant,
}

impl Teller {
    pub(crate) fn new(name: &'static str, started: Instant) -> Self {
        Self { name, started }
    }

    pub(crate) fn say(&self, text: impl std::fmt::Display) {
        println!("{:4} s  {:<16} {text}", self.started.elapsed().as_secs(), self.name);
    }
}

/// Prints the table; true when everything is right.
pub(crate) fn print(rows: &[Row], took: Duration) -> bool {
    println!();
    println!(
        "| scenario | faults | messages | lost | doubled | reordered | duplicates absorbed | relay peak MiB |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for row in rows {
        let Counts { messages, lost, doubled, reordered, .. } = row.counts;
        println!(
            "| {} | {} | {messages} | {lost} | {doubled} | {reordered} | {} | {:.1} |",
            row.name,
            row.faults,
            row.absorbed,
            row.memory_mib()
        );
    }
    println!();
    let mut is_right = !rows.is_empty();
    for row in rows {
        for problem in row.problems() {
            println!("WRONG: {}: {problem}", row.name);
            is_right = false;
        }
    }
    let seconds = took.as_secs();
    let verdict = if is_right { "nothing lost, doubled or reordered" } else { "see above" };
    println!("{} scenarios in {seconds} s, at most {MEMORY_MAX_MIB} MiB a relay: {verdict}", rows.len());
    is_right
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_problem_is_named() {
        let right = Row {
            name: "x",
            faults: String::new(),
            counts: Counts { messages: 5, ..Counts::default() },
            absorbed: 0,
            memory_peak: 24 << 20,
            alarms: Vec::new(),
            broken: None,
        };
        assert!(right.problems().is_empty());
        let check = |change: fn(&mut Row)| {
            let mut row = right.clone();
            change(&mut row);
            assert_eq!(row.problems().len(), 1, "{row:?}");
        };
        check(|row| row.counts.messages = 0);
        check(|row| row.counts.lost = 1);
        check(|row| row.counts.doubled = 1);
        check(|row| row.counts.reordered = 1);
        check(|row| row.counts.invented = 1);
        check(|row| row.alarms.push("a loss".to_owned()));
        check(|row| row.memory_peak = 25 << 20);
        check(|row| row.broken = Some("did not start".to_owned()));
    }
}
