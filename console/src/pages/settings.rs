//! `/settings`: the settings of this console, and those of relays, as they are.

use std::{collections::BTreeMap, sync::Arc};

use maud::{Markup, html};
use oncebox_operator::RelaySettings;
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    access::tokens::Role,
    ask::Ask,
    html::words::{self, span},
    problem::Problem,
    view::View,
};

#[derive(Serialize, JsonSchema)]
pub(crate) struct Settings {
    listen: String,
    hosts: Vec<String>,
    allows_actions: bool,
    shows_payloads: bool,
    sign_in: &'static str,
    user: String,
    role: Role,
    databases: Vec<OfDatabase>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "DatabaseSettings")]
struct OfDatabase {
    name: String,
    postgres: String,
    schema: String,
    nats: Option<String>,
    /// The settings of relays at work.
    relays: Vec<RelaySettings>,
}

pub(crate) async fn load(ask: Arc<Ask>) -> Result<Settings, Problem> {
    let settings = &ask.console.settings;
    let databases = ask.console.fleet.databases.iter().map(|database| OfDatabase {
        name: database.name().to_owned(),
        postgres: database.member.outbox.postgres_target(),
        schema: database.member.outbox.schema().as_str().to_owned(),
        nats: database.member.config.as_ref().map(oncebox_connect::config::Config::nats_target),
        relays: database
            .sample()
            .status
            .as_ref()
            .map(|status| status.relay_settings.clone())
            .unwrap_or_default(),
    });
    Ok(Settings {
        listen: settings.listen.to_string(),
        hosts: settings.hosts.clone(),
        allows_actions: settings.allows_actions,
        shows_payloads: settings.shows_payloads,
        sign_in: match (&settings.tokens[..], &settings.proxy) {
            ([], None) => "nobody signs in: whoever reaches this address is let in",
            ([], Some(_)) => "a trusted proxy names who asks",
            (_, None) => "a token for each person",
            (_, Some(_)) => "a token for each person, or a trusted proxy",
        },
        user: ask.user.name.clone(),
        role: ask.user.role,
        databases: databases.collect(),
    })
}

impl View for Settings {
    fn title(&self) -> String {
        "Settings".to_owned()
    }

    fn body(&self, _: &Ask) -> Markup {
        let yes =
            |is: bool, option: &str| if is { "yes".to_owned() } else { format!("no; {option} allows it") };
        let rows = BTreeMap::from([
            ("Actions", yes(self.allows_actions, "--allow-actions")),
            ("Listens at", self.listen.clone()),
            (
                "Names",
                if self.hosts.is_empty() {
                    "localhost and addresses".to_owned()
                } else {
                    self.hosts.join(", ")
                },
            ),
            ("Payloads", yes(self.shows_payloads, "--show-payloads")),
            ("Sign-in", self.sign_in.to_owned()),
            (
                "You",
                format!("{}, {}", self.user, if self.role == Role::Operator { "operator" } else { "reader" }),
            ),
        ]);
        html! {
            h2 { "This console" }
            dl { @for (name, value) in &rows { dt { (name) } dd { (value) } } }
            h2 { "Databases" }
            div.scroll tabindex="0" { table {
                thead { tr { th { "Database" } th { "PostgreSQL" } th { "Schema" } th { "NATS" } th { "Relays at work" } } }
                tbody { @for database in &self.databases { tr {
                    th scope="row" { a href=(format!("/db/{}", database.name)) { (database.name) } }
                    td.long { (database.postgres) }
                    td { (database.schema) }
                    td.long { (database.nats.as_deref().unwrap_or("not configured")) }
                    td.long { @for relays in &database.relays { div {
                        (relays.relays) ": keep settled messages "
                        @match relays.retention_seconds { Some(seconds) => { "for " (span(seconds)) }, None => "for ever" }
                        ", on-dead = " @if relays.dead_blocks { "block" } @else { "skip" }
                    } } }
                } } }
            } }
            (words::command(&["oncebox", "doctor"]))
        }
    }
}
