//! `oncebox saga`: look at sagas, help them, and lead those of files.

use anyhow::{Context as _, anyhow};
use clap::{Arg, ArgMatches, Command};
use oncebox_operator::{Action, Done, Kind, Operator, Order, SagaDrawing as Drawing, Selection, Verb};

use super::{On, Run, act, group, list, output, with};

mod file;
mod health;
mod lead;
mod mermaid;
mod svg;
mod text;

pub(super) use lead::{Apply, Lead, Start};
pub(super) use text::steps;

/// Show a saga: each step and each compensation that was sent
#[derive(clap::Args)]
pub(crate) struct Show {
    /// The saga's key, from the list
    #[arg(value_name = "KEY")]
    saga: String,
    /// With its data, which may hold what others must not see
    #[arg(long)]
    data: bool,
    #[command(flatten)]
    form: Form,
}

/// Draw a definition that an orchestrator has registered, as a flowchart for Mermaid
#[derive(clap::Args)]
pub(crate) struct Graph {
    /// The name of the definition
    #[arg(value_name = "NAME")]
    name: String,
    /// This version, instead of the newest
    #[arg(long, value_name = "N")]
    version: Option<i32>,
    /// Draw it as an SVG picture
    #[arg(long, conflicts_with = "json")]
    svg: bool,
    /// Print JSON, a document per line
    #[arg(long)]
    json: bool,
}

// How a saga is shown, if not as text.
#[derive(clap::Args)]
struct Form {
    /// Draw it, as a flowchart for Mermaid
    #[arg(long, conflicts_with_all = ["json", "svg"])]
    mermaid: bool,
    /// Draw it, as an SVG picture
    #[arg(long, conflicts_with = "json")]
    svg: bool,
    /// Print JSON, a document per line
    #[arg(long)]
    json: bool,
}

pub(super) fn command(connection: impl Fn() -> Vec<Arg>, for_both: Vec<Arg>) -> Command {
    let actions = Action::on(Kind::Sagas).map(act::command);
    group(
        "saga",
        "Lead business processes over several services; look at them, and help those that are stuck",
    )
    .subcommands([list::command(Kind::Sagas), with::<Show>("show"), with::<Graph>("graph")])
    .subcommands(actions)
    .subcommands([with::<Start>("start"), with::<Apply>("apply")])
    .mut_subcommands(|inner| inner.args(connection()))
    .subcommand(with::<Lead>("run").args(for_both))
    .subcommands(file::commands())
}

/// The text of a command that needs no server, and its exit code.
pub(super) fn write(path: &[&str], flags: &ArgMatches) -> Option<(Vec<u8>, u8)> {
    let [group, name] = path else { return None };
    let (text, code) = (*group == "saga").then(|| file::write(name, flags)).flatten()?;
    Some((text.into_bytes(), code))
}

impl Run for Show {
    async fn run(self, on: &On) -> anyhow::Result<u8> {
        let Self { saga: key, data, form: Form { mermaid, svg, json } } = self;
        let found = on.operator().await?.saga(&key, data).await?;
        let found = found.with_context(|| format!("no saga has the key {key:?}"))?;
        output::end(&match (json, mermaid, svg) {
            (true, ..) => output::json_lines(&[found])?,
            (_, true, _) => mermaid::draw(&Drawing::of_instance(&found)),
            (.., true) => svg::draw(&Drawing::of_instance(&found)),
            _ => text::details(&found),
        })
    }
}

impl Run for Graph {
    async fn run(self, on: &On) -> anyhow::Result<u8> {
        let Self { name, version, svg, json } = self;
        let found = on.operator().await?.saga_definitions(Some(&name), version).await?.into_iter().next();
        let found = found.with_context(|| unregistered(&name, version))?;
        output::end(&match (json, svg) {
            (true, _) => output::json_lines(&[found])?,
            (_, true) => svg::draw(&Drawing::of_definition(&found)),
            _ => mermaid::draw(&Drawing::of_definition(&found)),
        })
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
