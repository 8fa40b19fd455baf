//! `oncebox saga check | test | schema`: files of sagas, without any server.

use std::fmt::Write as _;

use clap::{ArgMatches, Command};
use oncebox_operator::{SagaDefinition, SagaDrawing};
use oncebox_saga::{FileMistake, SagaFile, Scenarios};
use serde::Serialize;
use serde_json::json;

use super::{
    super::{given, with},
    Form, svg,
};

/// Exit code when a file is wrong, or a scenario ends otherwise.
const WRONG: u8 = 1;

pub(super) fn commands() -> [Command; 3] {
    [
        with::<Check>("check"),
        with::<Test>("test"),
        Command::new("schema").about("Print the JSON Schema of these files, for editors"),
    ]
}

// Files of sagas.
#[derive(clap::Args)]
pub(super) struct Files {
    /// Files that define sagas, one each
    #[arg(value_name = "FILE", required = true, num_args = 1..)]
    file: Vec<String>,
}

/// Check files of sagas: every mistake with its line, or what they define
#[derive(clap::Args)]
struct Check {
    #[command(flatten)]
    files: Files,
    #[command(flatten)]
    form: Form,
}

/// Run scenarios through a saga, with the decisions of production, and show the way of each
#[derive(clap::Args)]
struct Test {
    /// The saga
    #[arg(value_name = "FILE")]
    file: String,
    /// Files of scenarios
    #[arg(value_name = "SCENARIOS", required = true, num_args = 1..)]
    scenarios: Vec<String>,
    /// Print JSON, a document per line
    #[arg(long)]
    json: bool,
}

/// A file that was read, as it is called.
pub(super) struct Named {
    pub(super) path: String,
    pub(super) saga: SagaFile,
}

/// Reads files, all of them.
///
/// # Errors
/// All mistakes in them, as lines.
pub(super) fn read_all(files: &Files) -> Result<Vec<Named>, Vec<String>> {
    let shown = |mistakes: Vec<Placed>| {
        mistakes.iter().map(|Placed { file, mistake }| place(file, mistake)).collect()
    };
    read_each(&files.file).map_err(shown)
}

/// A mistake in one of several files.
#[derive(Serialize)]
struct Placed {
    file: String,
    #[serde(flatten)]
    mistake: FileMistake,
}

fn read_each(files: &[String]) -> Result<Vec<Named>, Vec<Placed>> {
    let (mut all, mut mistakes): (Vec<Named>, _) = (Vec::new(), Vec::new());
    for path in files {
        match text(path).and_then(|text| SagaFile::parse(&text)) {
            Ok(saga) => {
                let name = |saga: &SagaFile| (saga.graph().name().to_owned(), saga.graph().version());
                if let Some(other) = all.iter().find(|other| name(&other.saga) == name(&saga)) {
                    let (name, version) = name(&saga);
                    let other = &other.path;
                    let problem = format!("saga {name:?}, version {version}, is in {other} too");
                    mistakes.push(Placed { file: path.clone(), mistake: FileMistake::of_file(problem) });
                }
                all.push(Named { path: path.clone(), saga });
            }
            Err(found) => {
                let placed = |mistake| Placed { file: path.clone(), mistake };
                mistakes.extend(found.into_iter().map(placed));
            }
        }
    }
    if mistakes.is_empty() { Ok(all) } else { Err(mistakes) }
}

fn place(path: &str, mistake: &FileMistake) -> String {
    format!("{path}:{}: {}", mistake.line, mistake.text())
}

fn text(path: &str) -> Result<String, Vec<FileMistake>> {
    std::fs::read_to_string(path)
        .map_err(|error| vec![FileMistake::of_file(format!("cannot be read: {error}"))])
}

/// The text of a command that needs no server, and its exit code.
pub(super) fn write(name: &str, flags: &ArgMatches) -> Option<(String, u8)> {
    match name {
        "check" => Some(check(&given(flags))),
        "test" => Some(test(&given(flags))),
        "schema" => Some((SagaFile::SCHEMA.to_owned(), 0)),
        _ => None,
    }
}

fn check(Check { files, form }: &Check) -> (String, u8) {
    let all = match read_each(&files.file) {
        Ok(all) => all,
        Err(mistakes) if form.json => {
            return (lines(mistakes.iter().map(|mistake| json!(mistake))), WRONG);
        }
        Err(mistakes) => {
            let shown = mistakes.iter().map(|Placed { file, mistake }| place(file, mistake) + "\n");
            return (shown.collect(), WRONG);
        }
    };
    let shown = all.iter().map(|Named { path, saga }| {
        let graph = saga.graph();
        let steps: Vec<&str> = graph.steps().collect();
        if form.mermaid {
            graph.mermaid()
        } else if form.svg {
            let definition = SagaDefinition::of_file(graph.name(), i32::from(graph.version()), &graph.json());
            svg::draw(&SagaDrawing::of_definition(&definition))
        } else if form.json {
            lines([json!({ "file": path, "saga": graph.name(), "version": graph.version(), "steps": steps })])
        } else {
            let (name, version, count) = (graph.name(), graph.version(), steps.len());
            let plural = if count == 1 { "" } else { "s" };
            format!("{path}: saga {name:?}, version {version}, {count} step{plural}: {}\n", steps.join(", "))
        }
    });
    (shown.collect(), 0)
}

fn test(Test { file, scenarios, json }: &Test) -> (String, u8) {
    let files = Files { file: vec![file.clone()] };
    let saga = match read_all(&files).map(|mut all| all.remove(0).saga) {
        Ok(saga) => saga,
        Err(mistakes) => return (mistakes.join("\n") + "\n", WRONG),
    };
    let (mut shown, mut code) = (String::new(), 0);
    for path in scenarios {
        let outcomes = match text(path).and_then(|text| Scenarios::parse(&text, &saga)) {
            Ok(scenarios) => scenarios.run(&saga),
            Err(mistakes) => {
                shown.extend(mistakes.iter().map(|mistake| place(path, mistake) + "\n"));
                code = WRONG;
                continue;
            }
        };
        if outcomes.iter().any(|outcome| outcome.problem.is_some()) {
            code = WRONG;
        }
        if *json {
            shown += &lines(outcomes.iter().map(|outcome| json!(outcome)));
            continue;
        }
        for outcome in outcomes {
            let word = if outcome.problem.is_some() { "FAILED" } else { "ok" };
            let _ = writeln!(shown, "{word}: {} ({})", outcome.name, outcome.ended);
            outcome.path.iter().for_each(|line| shown += &format!("  {line}\n"));
            outcome.problem.iter().for_each(|problem| shown += &format!("  {problem}\n"));
        }
    }
    (shown, code)
}

fn lines(all: impl IntoIterator<Item = serde_json::Value>) -> String {
    all.into_iter().map(|one| format!("{one}\n")).collect()
}
