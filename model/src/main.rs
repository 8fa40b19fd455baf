//! Checks the specification, and prints how far: all scopes, or one by its name. With
//! `check-trace`, recordings of relays.

use std::{fs, process::ExitCode};

use oncebox_model::{
    outbox::{Outbox, scope},
    trace::{self, Circumstances, Ledger, Passes},
};
use stateright::{Checker as _, HasDiscoveries, Model as _};
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

/// True when no promise is broken.
#[expect(clippy::print_stdout, reason = "a program for people")]
fn explore(wanted: Option<&str>) -> bool {
    let mut is_right = true;
    for scope in scope::ALL.iter().filter(|scope| wanted.is_none_or(|name| name == scope.name)) {
        let begun = Instant::now();
        let checker = Outbox { scope, mutant: None }.checker().threads(2);
        let checker = checker.finish_when(HasDiscoveries::Any).spawn_bfs().join();
        let (states, depth) = (checker.unique_state_count(), checker.max_depth());
        println!("{}: {states} states, depth {depth}, {:.1?}", scope.name, begun.elapsed());
        for (promise, path) in checker.discoveries() {
            println!("broken: {promise}\n{path}");
            is_right = false;
        }
    }
    is_right
}

/// `check-trace [--postgres-crashed] [--stream-lost] --ledger FILE FILE...`, or
/// `check-trace --query` for the query that makes the ledger.
#[expect(clippy::print_stdout, reason = "a program for people")]
fn check_trace(mut arguments: impl Iterator<Item = String>) -> Result<bool, String> {
    let (mut ledger, mut passes, mut of) = (None, Passes::default(), Circumstances::default());
    let mut files = 0;
    while let Some(argument) = arguments.next() {
        let read = |path: &str| fs::read_to_string(path).map_err(|error| format!("{path}: {error}"));
        match argument.as_str() {
            "--query" => {
                println!("{}", trace::LEDGER);
                return Ok(true);
            }
            "--postgres-crashed" => of.postgres_crashed = true,
            "--stream-lost" => of.stream_lost = true,
            "--ledger" => {
                let path = arguments.next().ok_or("--ledger needs a file")?;
                let parsed =
                    Ledger::parse(read(&path)?.lines()).map_err(|error| format!("{path}: {error}"))?;
                ledger = Some(parsed);
            }
            path => {
                passes.add(&read(path)?);
                files += 1;
            }
        }
    }
    let ledger = ledger.filter(|_| files > 0);
    let ledger = ledger
        .ok_or("usage: check-trace [--postgres-crashed] [--stream-lost] --ledger FILE FILE... | --query")?;
    let verdict = trace::check(&ledger, &passes, of);
    println!("{verdict}");
    Ok(verdict.is_right())
}
