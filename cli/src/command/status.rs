//! `oncebox status`.

mod beyond;
mod quiet;

use std::{io::IsTerminal as _, time::Duration};

use oncebox_connect::{
    error::error_chain,
    words::{counted, for_one},
};
use oncebox_operator::{Holder, LaneStatus, Status as Stands, Time};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::{MissedTickBehavior, interval},
};

use super::{
    On, Run, doctor,
    output::{self, time},
};

/// Clears the screen of a terminal.
pub(super) const CLEAR: &str = "\x1b[H\x1b[2J";

/// Show backlog, lag, relays at work, streams, and what holds delivery up
#[derive(Clone, clap::Args)]
pub(crate) struct Status {
    /// Look again after so many seconds, until a signal; 1 to 3600
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=3600))]
    watch: Option<u32>,
    #[command(flatten)]
    quiet: quiet::UntilQuiet,
    /// Show the lanes at rest too
    #[arg(long)]
    all: bool,
    /// Print one JSON document, with --watch one per line
    #[arg(long)]
    json: bool,
}

/// The result of one look.
pub(super) enum Looked {
    /// All that was to be asked has answered.
    Whole,
    /// No message gets through: there is no relay, or PostgreSQL takes no writes.
    Down,
    /// NATS could not be reached.
    WithoutNats,
    /// The reader of the output has gone.
    Unread,
}

impl Status {
    /// The same without `--watch`, and its period.
    pub(super) fn watched(&self) -> Option<(Duration, Self)> {
        let period = self.watch.map(|seconds| Duration::from_secs(seconds.into()));
        period.map(|period| (period, Self { watch: None, ..self.clone() }))
    }

    /// Looks once, on a connection of its own: while one watches, the server may go away and come
    /// back. NATS is asked with the whole configuration, where there is one.
    async fn look(&self, on: &On, clears: bool) -> anyhow::Result<Looked> {
        let mut status = on.operator().await?.status().await?;
        if let Some(config) = &on.config {
            status.add_nats(config).await;
        }
        let text = if self.json { output::json_lines(&[&status])? } else { text(&status, self.all) };
        let clear = if clears && !self.json { CLEAR } else { "" };
        let is_read = output::print(&format!("{clear}{text}"))?;
        Ok(match status.nats_problem {
            _ if !is_read => Looked::Unread,
            Some(_) => Looked::WithoutNats,
            None if status.is_down() => Looked::Down,
            None => Looked::Whole,
        })
    }
}

impl Run for Status {
    async fn run(self, on: &On) -> anyhow::Result<u8> {
        if let Some(within) = self.quiet.within() {
            return self.quiet.run(on, within, self.json).await;
        }
        match self.watched() {
            Some((period, once)) => watch(period, async |clears| once.look(on, clears).await).await,
            None => Ok(match self.look(on, false).await? {
                Looked::Whole | Looked::Unread => 0,
                Looked::Down => crate::FAILED,
                Looked::WithoutNats => crate::UNREACHABLE,
            }),
        }
    }
}

/// Looks again and again until a signal; a look is told whether it clears the screen.
pub(super) async fn watch(
    period: Duration,
    mut look: impl AsyncFnMut(bool) -> anyhow::Result<Looked>,
) -> anyhow::Result<u8> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_first = true;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = either(&mut terminate, &mut interrupt) => return Ok(0),
        }
        let looked = tokio::select! {
            looked = look(std::io::stdout().is_terminal()) => looked,
            () = either(&mut terminate, &mut interrupt) => return Ok(0),
        };
        match looked {
            // That NATS is away is on the screen.
            Ok(Looked::Whole | Looked::Down | Looked::WithoutNats) => {}
            Ok(Looked::Unread) => return Ok(0),
            Err(error) if is_first => return Err(error),
            Err(error) => tracing::warn!(
                error = %error_chain(error.as_ref()),
                "the status cannot be read; the next look tries again"
            ),
        }
        is_first = false;
    }
}

async fn either(one: &mut Signal, other: &mut Signal) {
    tokio::select! {
        _ = one.recv() => {}
        _ = other.recv() => {}
    }
}

/// Findings come first: an operator at night must not look for it.
fn text(status: &Stands, all: bool) -> String {
    let mut text = findings(status) + "\n";
    text += &(output::table(["SCHEMA", &status.schema], &summary(status)) + "\n");
    if let Some(nats) = status.nats.as_ref().filter(|nats| !nats.streams.is_empty()) {
        text += &(doctor::streams(&nats.streams) + "\n");
        text += &beyond::consumers(nats);
    }
    text += &beyond::inboxes(status, all);
    let is_busy = |lane: &LaneStatus| {
        lane.backlog_messages > 0
            || lane.is_restored
            || status.locks.iter().any(|holder| holder.lanes.contains(&lane.lane))
    };
    let shown: Vec<&LaneStatus> = status.lanes.iter().filter(|lane| all || is_busy(lane)).collect();
    if !shown.is_empty() {
        let heads = ["LANE", "BACKLOG", "LAG SECONDS", "SETTLED", "LOCKED BY"];
        text += &output::table(heads, &lanes(status, &shown));
    }
    match status.lanes.len() - shown.len() {
        0 => text,
        hidden => {
            let [are, them] = [("is", "are"), ("it", "them")].map(|(one, more)| for_one(hidden, one, more));
            text + &format!("{} {are} at rest; --all shows {them}\n", counted(hidden, "lane"))
        }
    }
}

fn findings(status: &Stands) -> String {
    if status.findings.is_empty() {
        return "nothing is seen to hold delivery up\n".to_owned();
    }
    let mut text = "what holds delivery up\n".to_owned();
    for finding in &status.findings {
        text += &output::clean(&format!("- {}\n    {}\n", finding.what, finding.remedy));
    }
    let names_nats = ["nats stream ", "nats consumer "];
    if status.findings.iter().any(|finding| names_nats.iter().any(|name| finding.remedy.contains(name))) {
        text += "`nats` is the command line of NATS itself, https://github.com/nats-io/natscli\n";
    }
    text
}

fn backlog(status: &Stands) -> String {
    let messages = output::messages(status.backlog_messages.unsigned_abs());
    if status.backlog_is_exact { messages } else { format!("about {messages}, estimated") }
}

fn summary(status: &Stands) -> Vec<[String; 2]> {
    let line = |name: &str, value: String| [name.to_owned(), value];
    let when = |at: Option<Time>| at.map_or_else(|| "none".to_owned(), time);
    let has_leader = status.relays.iter().any(|group| group.leads);
    let relays = status.relays.iter().map(|group| {
        let client = group.client.as_ref().map(|client| format!("@{client}")).unwrap_or_default();
        let user = group.user_name.as_deref().unwrap_or("?");
        let role = match (group.leads, has_leader) {
            (true, _) => " (leader)",
            (false, true) => " (standby)",
            (false, false) => "",
        };
        format!("{} of {user}{client}{role}", group.sessions)
    });
    let relays: Vec<String> = relays.collect();
    let asleep = status.asleep.as_ref().map(|asleep| {
        let (count, at, subject) = (asleep.relays, time(asleep.wakes_at), &asleep.wake_subject);
        format!("{count} asleep until {at}, or until `nats pub {subject} ''`")
    });
    let relays: Vec<String> = relays.into_iter().chain(asleep).collect();
    let relays = if relays.is_empty() { "none".to_owned() } else { relays.join(", ") };
    let mut lines = vec![
        line("time", when(status.at)),
        line("backlog", backlog(status)),
        line("lag", format!("{:.1} s", status.lag_seconds)),
        line("enqueued", format!("{:.1} messages/s", status.rates.enqueued_per_second)),
        line("settled", format!("{:.1} messages/s", status.rates.settled_per_second)),
        line("parked", capped(status.parked)),
        line("dead", capped(status.dead)),
        line("replays", capped(status.replays)),
        line("delayed", delayed(status)),
        line("relay sessions", relays),
        line("NATS", nats(status)),
        line("milestones", format!("{} to {}", when(status.oldest_milestone), when(status.newest_milestone))),
    ];
    if !status.sees_all_sessions {
        let hint = "own ones only: for state and age of others, GRANT pg_read_all_stats to this role";
        lines.push(line("sessions seen", hint.to_owned()));
    }
    lines
}

/// Messages that are set aside are counted to 100,000.
fn capped(number: i64) -> String {
    if number >= 100_000 { format!("at least {number}") } else { number.to_string() }
}

fn delayed(status: &Stands) -> String {
    let count = status.delayed;
    match count.late_seconds {
        late if late > 0.0 => format!("{}; the first is {late:.1} s late", count.messages),
        _ => count.messages.to_string(),
    }
}

fn nats(status: &Stands) -> String {
    match (&status.nats, &status.nats_problem) {
        (Some(nats), _) => match &nats.unasked[..] {
            [] => format!("{} at {}", nats.version, nats.url),
            [first, ..] => format!("{} at {}; not all could be asked: {first}", nats.version, nats.url),
        },
        (None, Some(problem)) => problem.clone(),
        (None, None) => "not asked: no NATS_URL is given".to_owned(),
    }
}

fn lanes(status: &Stands, shown: &[&LaneStatus]) -> Vec<[String; 5]> {
    let rows = shown.iter().map(|lane| {
        let holders = status.locks.iter().filter(|holder| holder.lanes.contains(&lane.lane));
        let holders: Vec<String> = holders.map(holder).collect();
        [
            lane.lane.to_string(),
            lane.backlog_messages.to_string(),
            format!("{:.1}", lane.lag_seconds),
            time(lane.settled_at),
            holders.join("; "),
        ]
    });
    rows.collect()
}

fn holder(holder: &Holder) -> String {
    let pid = holder.pid.map(|pid| format!("pid {pid}"));
    let parts = [
        pid.as_ref(),
        holder.prepared.as_ref(),
        holder.application_name.as_ref(),
        holder.user_name.as_ref(),
        holder.client.as_ref(),
        holder.state.as_ref(),
    ];
    let mut parts: Vec<String> = parts.into_iter().flatten().cloned().collect();
    parts.extend(holder.transaction_seconds.map(|seconds| format!("{seconds:.0} s")));
    parts.join(", ")
}
