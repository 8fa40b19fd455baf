//! `/db/NAME/doctor`: the last findings of the doctor, who looks once a minute.

use std::sync::Arc;

use maud::{Markup, html};
use oncebox_operator::{Diagnosis, Severity};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    ask::Ask,
    html::words::{self, empty, state},
    problem::Problem,
    view::View,
};

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Findings")]
pub(crate) struct Doctor {
    database: String,
    /// `None` until the first examination has ended.
    findings: Option<Vec<Diagnosis>>,
    /// Whether the doctor looks at all: NATS is configured.
    looks: bool,
}

pub(crate) async fn load(ask: Arc<Ask>) -> Result<Doctor, Problem> {
    let database = ask.database()?;
    let findings = database.sample().examination.as_ref().map(|examination| examination.findings.clone());
    Ok(Doctor { database: database.name().to_owned(), findings, looks: database.member.config.is_some() })
}

impl View for Doctor {
    fn title(&self) -> String {
        format!("Doctor of {}", self.database)
    }

    fn body(&self, _: &Ask) -> Markup {
        html! {
            div #doctor data-live=(self.database) {
                @match (&self.findings, self.looks) {
                    (_, false) => (empty("The doctor compares both servers with a relay's configuration: give nats_url, and findings stand here.")),
                    (None, true) => (empty("The doctor is looking for the first time; findings stand here in some seconds.")),
                    (Some(findings), true) if findings.is_empty() => (empty("The doctor finds nothing.")),
                    (Some(findings), true) => {
                        ul.findings { @for found in findings { (show(found)) } }
                    },
                }
            }
            (words::command(&["oncebox", "doctor", "--database", &self.database]))
        }
    }
}

fn show(found: &Diagnosis) -> Markup {
    let word = match found.severity {
        Severity::Problem => "problem",
        Severity::Warning => "warning",
        _ => "note",
    };
    html! {
        li.(word) {
            (state(word)) " " strong { (found.what) }
            p { (found.consequence) }
            p { "Remedy: " (found.remedy) " " code.quiet { (found.check) } }
        }
    }
}
