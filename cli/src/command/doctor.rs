//! `oncebox doctor`.

use oncebox_connect::{clock::Skew, words::counted};
use oncebox_operator::{Diagnosis, Examination, Severity, StreamStatus, examine};

use super::{On, Run, output};

/// Check servers, privileges and streams against the relay's configuration; changes nothing
#[derive(clap::Args)]
#[command(
    long_about = "Check servers, versions, privileges, the settings of streams, limits, poolers and clocks against the \
    relay's configuration, with the relay's own options and role. Changes nothing. Exit codes: 0 nothing must \
    be mended, 1 something must, 69 a server cannot be reached."
)]
pub(crate) struct Doctor {
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

impl Run for Doctor {
    async fn run(self, on: &On) -> anyhow::Result<u8> {
        let examination = examine(on.config()).await;
        let text = if self.json { output::json_lines(&[&examination])? } else { text(&examination) };
        output::print(&text)?;
        Ok(match examination {
            seen if !seen.reached_both() => crate::UNREACHABLE,
            seen if seen.has_problem() => 1,
            _ => 0,
        })
    }
}

fn text(seen: &Examination) -> String {
    let mut text = output::table(["SERVER", "SEEN"], &servers(seen)) + "\n";
    if let Some(nats) = seen.nats.as_ref().filter(|nats| !nats.streams.is_empty()) {
        text += &(streams(&nats.streams) + "\n");
    }
    for found in &seen.findings {
        text += &lines(found);
    }
    let count = |severity| seen.findings.iter().filter(|found| found.severity == severity).count();
    let counts = [
        (count(Severity::Problem), "problem"),
        (count(Severity::Warning), "warning"),
        (count(Severity::Note), "note"),
    ];
    let counts = counts.map(|(count, word)| counted(count, word));
    text + &counts.join(", ") + "\n"
}

fn lines(found: &Diagnosis) -> String {
    let word = match found.severity {
        Severity::Problem => "PROBLEM",
        Severity::Warning => "WARNING",
        _ => "NOTE",
    };
    let line = format!(
        "{word}  {}  [{}]\n    leads to: {}\n    remedy: {}\n\n",
        found.what, found.check, found.consequence, found.remedy
    );
    output::clean(&line)
}

fn servers(seen: &Examination) -> Vec<[String; 2]> {
    let clock =
        |skew: Option<Skew>| skew.map(|skew| format!(", clock {:+.3} s", skew.seconds)).unwrap_or_default();
    let postgres = match &seen.postgres {
        Some(facts) => format!(
            "{} at {}, role {}, schema {}{}",
            facts.version,
            facts.target,
            facts.role_name,
            facts.schema,
            clock(facts.clock)
        ),
        None => seen.postgres_problem.clone().unwrap_or_default(),
    };
    let nats = match &seen.nats {
        Some(nats) => format!("{} at {}{}", nats.version, nats.url, clock(nats.clock)),
        None => seen.nats_problem.clone().unwrap_or_default(),
    };
    vec![["PostgreSQL".to_owned(), postgres], ["NATS".to_owned(), nats]]
}

/// A line for each stream, with its limits and how full it is.
pub(super) fn streams(streams: &[StreamStatus]) -> String {
    let limit =
        |count: u64, most: Option<u64>| most.map_or(count.to_string(), |most| format!("{count} of {most}"));
    let rows = streams.iter().map(|stream| {
        [
            stream.name.clone(),
            stream.subjects.join(", "),
            limit(stream.messages, stream.messages_max),
            limit(stream.bytes, stream.bytes_max),
            stream
                .filled
                .map_or("no limit".to_owned(), |filled| format!("{:.0} %", (filled * 100.0).floor())),
            if stream.discards_new { "new" } else { "old" }.to_owned(),
            format!("{:.0} s", stream.duplicate_window_seconds),
            format!("{}{}", stream.replicas, if stream.is_in_memory { " in memory" } else { "" }),
        ]
    });
    let heads = ["STREAM", "SUBJECTS", "MESSAGES", "BYTES", "FILLED", "DISCARD", "WINDOW", "REPLICAS"];
    output::table(heads, &rows.collect::<Vec<_>>())
}
