//! `oncebox saga`: look at sagas, help them, and lead those of files.

use anyhow::{Context as _, anyhow, ensure};
use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Command};
use oncebox_connect::config::OutboxConfig;
use oncebox_operator::{
    ActedOn, Operator, SAGA_STATES, SagaAction, SagaDrawing as Drawing, SagaSelection, Stamp,
};
use tokio::task::JoinSet;

use super::{action, output};

mod file;
mod health;
mod lead;
mod mermaid;
mod svg;
mod text;

pub(super) use lead::{Lead, Start};
pub(super) use text::steps;

const SELECTORS: [&str; 3] = ["key", "type", "state"];

/// The arguments of the command.
pub(crate) enum Sagas {
    List { selection: SagaSelection, limit: usize, json: bool },
    Show { key: String, data: bool, form: Form },
    Graph { name: String, version: Option<i32>, form: Form },
    Act { action: SagaAction, selection: SagaSelection, limit: Option<u64>, run: action::Run },
}

/// How a saga is shown.
#[derive(Clone, Copy)]
pub(crate) enum Form {
    Text,
    Json,
    Mermaid,
    Svg,
}

pub(super) fn command(connection: impl Fn() -> Vec<Arg>, for_both: Vec<Arg>) -> Command {
    let limit = Arg::new("limit")
        .long("limit")
        .value_name("N")
        .value_parser(clap::value_parser!(u32).range(1..=100_000))
        .default_value("1000")
        .help("Sagas at most; 1 to 100000");
    let list = Command::new("list")
        .about("List sagas that have not finished, in the order of their beginning")
        .args(selection())
        .arg(limit)
        .arg(action::json());
    let step = || Arg::new("step").long("step").value_name("STEP");
    let retry = acting("retry", "Try again what waits for an operator; read again what is in quarantine")
        .arg(step().help("Only this step"));
    let skip = acting(
        "skip",
        "Go on as if a step that waits, or put its saga aside, were done, or undone: somebody did it by hand",
    )
    .arg(step().required(true).help("The step"))
    .arg(
        lead::json("reply").help("The reply that its participant would have sent, where later steps need it"),
    );
    let abandon = acting(
        "abandon",
        "Give sagas up as they stand: what is delayed is cancelled, nothing more is sent or undone",
    );
    Command::new("saga")
        .about("Lead business processes over several services; look at them, and help those that are stuck")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands([list, show(), graph(), retry, skip, abandon, lead::start(), lead::apply()])
        .mut_subcommands(|inner| inner.args(connection()))
        .subcommand(lead::run().args(for_both))
        .subcommands(file::commands())
}

/// The text of a command that needs no server, and its exit code.
pub(super) fn write(path: &[&str], flags: &ArgMatches) -> Option<(Vec<u8>, u8)> {
    let [group, name] = path else { return None };
    let (text, code) = (*group == "saga").then(|| file::write(name, flags)).flatten()?;
    Some((text.into_bytes(), code))
}

fn show() -> Command {
    let key = Arg::new("saga").value_name("KEY").required(true).help("The saga's key, from the list");
    Command::new("show")
        .about("Show a saga: each step and each compensation that was sent")
        .arg(key)
        .arg(flag("data", "With its data, which may hold what others must not see"))
        .arg(flag("mermaid", "Draw it, as a flowchart for Mermaid").conflicts_with_all(["json", "svg"]))
        .arg(flag("svg", "Draw it, as an SVG picture").conflicts_with("json"))
        .arg(action::json())
}

fn graph() -> Command {
    let version = Arg::new("version").long("version").value_name("N").value_parser(clap::value_parser!(i32));
    Command::new("graph")
        .about("Draw a definition that an orchestrator has registered, as a flowchart for Mermaid")
        .arg(Arg::new("name").value_name("NAME").required(true).help("The name of the definition"))
        .arg(version.help("This version, instead of the newest"))
        .arg(flag("svg", "Draw it as an SVG picture").conflicts_with("json"))
        .arg(action::json())
}

fn flag(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
}

fn acting(name: &'static str, about: &'static str) -> Command {
    let all = Arg::new("all").long("all").action(ArgAction::SetTrue);
    let all = all.help("Every saga that has not finished");
    Command::new(name)
        .about(about)
        .args(selection())
        .arg(all.conflicts_with_all(SELECTORS))
        .group(ArgGroup::new("selection").args(SELECTORS).arg("all").required(true).multiple(true))
        .args(action::run())
        .arg(action::confirm())
        .mut_arg("limit", |limit| limit.help("Stop after so many sagas"))
}

fn selection() -> [Arg; 3] {
    let text = |name, value, help| Arg::new(name).long(name).value_name(value).help(help);
    [
        text("key", "KEY", "The saga with this key"),
        text("type", "NAME", "Sagas of this definition"),
        text("state", "STATE", "Sagas in this state").value_parser(SAGA_STATES),
    ]
}

impl Form {
    fn new(flags: &ArgMatches, usual: Self) -> Self {
        let is_given = |name: &str| flags.try_get_one::<bool>(name).ok().flatten() == Some(&true);
        let forms = [("json", Self::Json), ("mermaid", Self::Mermaid), ("svg", Self::Svg)];
        forms.into_iter().find(|(name, _)| is_given(name)).map_or(usual, |(_, form)| form)
    }
}

impl Sagas {
    pub(super) fn new(name: &str, flags: &ArgMatches) -> Self {
        let text = |name: &str| flags.try_get_one::<String>(name).ok().flatten().cloned();
        if name == "graph" {
            let form = Form::new(flags, Form::Mermaid);
            let version = flags.get_one::<i32>("version").copied();
            return Self::Graph { name: text("name").unwrap_or_default(), version, form };
        }
        if name == "show" {
            let form = Form::new(flags, Form::Text);
            let key = text("saga").unwrap_or_default();
            return Self::Show { key, data: flags.get_flag("data"), form };
        }
        let selection = SagaSelection {
            key: text("key"),
            saga_type: text("type"),
            state: text("state"),
            ..SagaSelection::default()
        };
        let action = match name {
            "retry" => SagaAction::Retry { step: text("step") },
            "skip" => SagaAction::Skip { step: text("step").unwrap_or_default(), reply: text("reply") },
            "abandon" => SagaAction::Abandon,
            _ => {
                let limit = flags.get_one::<u32>("limit").map_or(1000, |limit| *limit as usize);
                return Self::List { selection, limit, json: flags.get_flag("json") };
            }
        };
        let limit = flags.get_one::<u64>("limit").copied();
        Self::Act { action, selection, limit, run: action::Run::new(flags) }
    }

    pub(super) async fn run(self, config: &OutboxConfig) -> anyhow::Result<()> {
        let mut tasks = JoinSet::new();
        match self {
            Self::List { selection, limit, json } => {
                let operator = Operator::connect(config, Stamp::default(), &mut tasks).await?;
                // One more shows that there are more.
                let mut sagas = operator.sagas(&selection, limit + 1).await?;
                ensure!(
                    !sagas.is_empty() || selection == SagaSelection::default(),
                    "no saga is selected; finished ones are where --state or --key names them"
                );
                if sagas.len() > limit {
                    sagas.truncate(limit);
                    tracing::warn!(limit, "there are more sagas; see them with a higher --limit");
                }
                output::print(&if json { output::json_lines(&sagas)? } else { text::list(&sagas) })?;
            }
            Self::Show { key, data, form } => {
                let operator = Operator::connect(config, Stamp::default(), &mut tasks).await?;
                let found = operator.saga(&key, data).await?;
                let found = found.with_context(|| format!("no saga has the key {key:?}"))?;
                output::print(&match form {
                    Form::Text => text::details(&found),
                    Form::Json => output::json_lines(&[found])?,
                    Form::Mermaid => mermaid::draw(&Drawing::of_instance(&found)),
                    Form::Svg => svg::draw(&Drawing::of_instance(&found)),
                })?;
            }
            Self::Graph { name, version, form } => {
                let operator = Operator::connect(config, Stamp::default(), &mut tasks).await?;
                let found = operator.saga_definitions(Some(&name), version).await?.into_iter().next();
                let found = found.with_context(|| unregistered(&name, version))?;
                output::print(&match form {
                    Form::Svg => svg::draw(&Drawing::of_definition(&found)),
                    Form::Json => output::json_lines(&[found])?,
                    Form::Text | Form::Mermaid => mermaid::draw(&Drawing::of_definition(&found)),
                })?;
            }
            Self::Act { action, selection, limit, run } => {
                let mut operator = Operator::connect(config, run.stamp.clone(), &mut tasks).await?;
                let (verb, command, past) = match action {
                    SagaAction::Retry { .. } => ("retry", "saga retry", "asked for another attempt of"),
                    SagaAction::Skip { .. } => ("skip", "saga skip", "asked to go on with"),
                    SagaAction::Abandon => ("abandon", "saga abandon", "abandoned"),
                };
                let mut rows = run.rows(&operator, command).await?;
                if let Some(rows) = &mut rows {
                    operator.find_sagas(&action, &selection, limit, rows).await?;
                    run.check(rows)?;
                }
                let done = match &rows {
                    Some(rows) if run.dry_run => rows.count(),
                    only => {
                        let acted = operator.act_on_sagas(&action, &selection, limit, only.as_ref()).await?;
                        report_letters(&acted);
                        acted.sagas
                    }
                };
                run.report_of("saga", verb, past, done, rows.as_ref())?;
                if done == 0 {
                    return Err(nothing(&operator, &action, &selection).await);
                }
            }
        }
        Ok(())
    }
}

/// A new attempt has a key of its own: the dead letter of the last one blocks nothing, but
/// stays in the list.
fn report_letters(acted: &ActedOn) {
    const TOLD_MAX: usize = 10;
    if acted.letters > 0 {
        tracing::info!(letters = acted.letters, "dead letters of the last attempts are discarded");
    }
    for key in acted.commands_elsewhere.iter().take(TOLD_MAX) {
        tracing::info!(
            "if the participant gave this command up in another database, run there: oncebox inbox dead discard --key {key}"
        );
    }
}

fn unregistered(name: &str, version: Option<i32>) -> String {
    let version = version.map(|version| format!(", version {version},")).unwrap_or_default();
    format!("no orchestrator has registered a definition {name:?}{version} in this database")
}

/// The error of a command that found nothing to do; where a key was given, it says how that saga
/// stands.
async fn nothing(operator: &Operator, action: &SagaAction, selection: &SagaSelection) -> anyhow::Error {
    let sought = match action {
        SagaAction::Abandon => "that has not finished",
        SagaAction::Retry { step: None } => "that is in quarantine, or has a step that waits for an operator",
        SagaAction::Retry { .. } => "whose step of this name waits for an operator",
        SagaAction::Skip { .. } => "that is in quarantine, or whose step of this name waits for an operator",
    };
    let Some(key) = &selection.key else { return anyhow!("no saga is selected {sought}; nothing was done") };
    let sagas =
        operator.sagas(&SagaSelection { key: Some(key.clone()), ..SagaSelection::default() }, 1).await;
    match sagas.as_deref() {
        Err(_) | Ok([]) => anyhow!("no saga is selected {sought}: none has the key {key:?}"),
        Ok([saga, ..]) => anyhow!(
            "no saga is selected {sought}: that with the key {key:?} is {}; see `oncebox saga show {key}`",
            saga.state
        ),
    }
}
