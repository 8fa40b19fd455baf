//! Checks the specification, and prints how far: all of it, or the checks whose names begin with
//! the argument. With `check-trace`, recordings of relays, consumers and orchestrators.

use std::{fmt::Debug, fs, hash::Hash, path::Path, process::ExitCode};

use oncebox_model::{
    barrier::Barrier,
    inbox::Inbox,
    outbox::{Outbox, scope},
    ring::{keys::Keys, reading::Reading},
    saga::{self, Leads},
    trace::{self, Circumstances, Ledger, Passes, Steps, Verdict},
};
use stateright::{Checker as _, DiscoveryClassification, HasDiscoveries, Model};
use tokio::time::Instant;

#[expect(clippy::print_stderr, reason = "a program for people")]
fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("check-trace") => match check_trace(arguments) {
            Ok(true) => return ExitCode::SUCCESS,
            Ok(false) => {}
            Err(error) => eprintln!("{error}"),
        },
        wanted if explore(wanted) => return ExitCode::SUCCESS,
        _ => {}
    }
    ExitCode::FAILURE
}

/// True when no promise is broken. Names begin with the one that is wanted.
fn explore(wanted: Option<&str>) -> bool {
    let is_wanted = |name: &str| wanted.is_none_or(|wanted| name.starts_with(wanted));
    let mut is_right = true;
    for scope in scope::ALL.iter().filter(|scope| is_wanted(scope.name)) {
        is_right &= check(scope.name, Outbox { scope, mutant: None });
    }
    for (kind, is_leased) in [("", false), (", leased", true)] {
        if is_wanted("inbox") {
            for (reuse, is_reused) in [("", false), (", key reused", true)] {
                let inbox = Inbox { is_leased, is_reused, mutant: None };
                is_right &= check(&format!("inbox{kind}{reuse}"), inbox);
            }
        }
        if is_wanted("barrier") {
            is_right &= check(&format!("barrier{kind}"), Barrier { is_leased, mutant: None });
        }
    }
    if is_wanted("ring") {
        is_right &= check("ring, keys", Keys { mutant: None });
        is_right &= check("ring, reading", Reading { mutant: None });
    }
    for shape in saga::ALL.into_iter().filter(|_| is_wanted("saga")) {
        is_right &= check(&format!("saga, {}", shape.name), Leads::new(shape, None));
    }
    is_right
}

#[expect(clippy::print_stdout, reason = "a program for people")]
fn check<M>(name: &str, model: M) -> bool
where
    M: Model<State: Clone + Debug + Hash + Send + Sync + PartialEq, Action: Clone + Debug + PartialEq>
        + Send
        + Sync
        + 'static,
{
    let begun = Instant::now();
    let checker = model.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    println!("{name}: {states} states, depth {depth}, {:.1?}", begun.elapsed());
    let mut is_right = true;
    for (promise, path) in checker.discoveries() {
        if matches!(checker.discovery_classification(promise), DiscoveryClassification::Counterexample) {
            println!("broken: {promise}\n{path}");
            is_right = false;
        }
    }
    is_right
}

/// `check-trace [--postgres-crashed] [--stream-lost] --ledger FILE FILE...` for relays,
/// `check-trace --consumers [--keep FOLDER] --ledger FILE FILE...` for consumers and orchestrators;
/// with `--query` the query that makes the ledger. The folder takes the smallest recordings that
/// break a rule.
#[expect(clippy::print_stdout, reason = "a program for people")]
fn check_trace(mut arguments: impl Iterator<Item = String>) -> Result<bool, String> {
    const USAGE: &str = "usage: check-trace [--postgres-crashed] [--stream-lost] --ledger FILE FILE... | \
                         check-trace --consumers [--keep FOLDER] --ledger FILE FILE... | \
                         check-trace [--consumers] --query";
    let (mut of, mut is_of_consumers, mut keep) = (Circumstances::default(), false, None);
    let (mut ledger, mut recordings) = (None, Vec::new());
    while let Some(argument) = arguments.next() {
        let read = |path: &str| fs::read_to_string(path).map_err(|error| format!("{path}: {error}"));
        match argument.as_str() {
            "--query" => {
                println!("{}", if is_of_consumers { trace::KEYS } else { trace::LEDGER });
                return Ok(true);
            }
            "--consumers" => is_of_consumers = true,
            "--keep" => keep = Some(arguments.next().ok_or(USAGE)?),
            "--postgres-crashed" => of.postgres_crashed = true,
            "--stream-lost" => of.stream_lost = true,
            "--ledger" => ledger = Some(read(&arguments.next().ok_or(USAGE)?)?),
            path => recordings.push(read(path)?),
        }
    }
    let ledger = ledger.filter(|_| !recordings.is_empty()).ok_or(USAGE)?;
    let verdict = if is_of_consumers {
        of_consumers(&ledger, &recordings, keep.as_deref())?
    } else {
        let mut passes = Passes::default();
        recordings.iter().for_each(|text| passes.add(text));
        trace::check(&Ledger::parse(ledger.lines()).map_err(|error| format!("ledger: {error}"))?, &passes, of)
    };
    println!("{verdict}");
    Ok(verdict.is_right())
}

fn of_consumers(ledger: &str, recordings: &[String], keep: Option<&str>) -> Result<Verdict, String> {
    let wrong = |error| format!("ledger: {error}");
    let mut steps = Steps::default();
    recordings.iter().for_each(|text| steps.add(text));
    let verdict = trace::check_consumers(&trace::Keys::parse(ledger.lines()).map_err(wrong)?, &steps, &[]);
    if let Some(folder) = keep.filter(|_| !verdict.is_right()) {
        let lines: Vec<&str> = ledger.lines().collect();
        let kept = trace::keep(&lines, recordings, Path::new(folder));
        kept.map_err(|error| format!("{folder}: {error}"))?;
    }
    Ok(verdict)
}
