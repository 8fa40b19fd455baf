//! `oncebox saga`: look at sagas, help them, and lead those of files.

use anyhow::{Context as _, anyhow};
use clap::{Arg, ArgAction, ArgMatches, Command};
use oncebox_connect::config::OutboxConfig;
use oncebox_operator::{Action, Done, Kind, Operator, Order, SagaDrawing as Drawing, Selection, Stamp, Verb};
use tokio::task::JoinSet;

use super::{act, action, list, output};

mod file;
mod health;
mod lead;
mod mermaid;
mod svg;
mod text;

pub(super) use lead::{Lead, Start};
pub(super) use text::steps;

/// The arguments of the command.
pub(crate) enum Sagas {
    Show { key: String, data: bool, form: Form },
    Graph { name: String, version: Option<i32>, form: Form },
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
    let actions = Action::on(Kind::Sagas).map(act::command);
    Command::new("saga")
        .about("Lead business processes over several services; look at them, and help those that are stuck")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands([list::command(Kind::Sagas), show(), graph()])
        .subcommands(actions)
        .subcommands([lead::start(), lead::apply()])
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
        let form = Form::new(flags, Form::Text);
        Self::Show { key: text("saga").unwrap_or_default(), data: flags.get_flag("data"), form }
    }

    pub(super) async fn run(self, config: &OutboxConfig) -> anyhow::Result<()> {
        let mut tasks = JoinSet::new();
        match self {
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
        }
        Ok(())
    }
}

/// A new attempt has a key of its own: the dead letter of the last one blocks nothing, but
/// stays in the list.
pub(super) fn report_letters(acted: &Done) {
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
pub(super) async fn nothing(operator: &Operator, order: &Order) -> anyhow::Error {
    let field = |name: &str| order.fields.iter().find(|(known, _)| known == name).map(|(_, value)| value);
    let sought = match (order.verb, field("step")) {
        (Verb::AbandonSagas, _) => "that has not finished",
        (Verb::RetrySagas, None) => "that is in quarantine, or has a step that waits for an operator",
        (Verb::RetrySagas, _) => "whose step of this name waits for an operator",
        _ => "that is in quarantine, or whose step of this name waits for an operator",
    };
    let Some(key) = field("key") else { return anyhow!("no saga is selected {sought}; nothing was done") };
    let mut of = Selection::of(Kind::Sagas);
    of.key = Some(key.clone());
    match operator.sagas(&of, 1).await.as_deref() {
        Err(_) | Ok([]) => anyhow!("no saga is selected {sought}: none has the key {key:?}"),
        Ok([saga, ..]) => anyhow!(
            "no saga is selected {sought}, and on which no operator has acted already: that with the key {key:?} is {}; see \
             `oncebox saga show {key}`",
            saga.state
        ),
    }
}
