//! `oncebox adopt`.

use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Command};
use oncebox_connect::{
    config::OutboxConfig,
    words::{counted, for_one},
};
use oncebox_operator::{Adopted, Adoption, Operator};
use serde_json::json;
use tokio::task::JoinSet;

use super::{action, output};

/// The arguments.
pub(crate) struct Adopt {
    adoption: Adoption,
    run: action::Run,
}

pub(super) fn command(options: Vec<Arg>) -> Command {
    let choice = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
    };
    let run = action::without_limit();
    Command::new("adopt")
        .about("Let relays serve an outbox that they take for a copy of another database's")
        .arg(choice("move", "The original has moved here, and nothing serves it where it was: it goes on as it is"))
        .arg(choice(
            "discard-backlog",
            "It is a copy: make it an outbox of its own, and give up all messages that were due, set aside or delayed",
        ))
        .arg(choice(
            "send-backlog",
            "It is a copy: make it an outbox of its own, and send those messages too, although the original sends them",
        ))
        .group(ArgGroup::new("choice").args(["move", "discard-backlog", "send-backlog"]).required(true))
        .args(run)
        .arg(action::confirm())
        .args(options)
}

impl Adopt {
    pub(super) fn new(flags: &ArgMatches) -> Self {
        let adoption = match (flags.get_flag("move"), flags.get_flag("discard-backlog")) {
            (true, _) => Adoption::Moved,
            (_, true) => Adoption::WithoutBacklog,
            _ => Adoption::WithBacklog,
        };
        Self { adoption, run: action::Run::new(flags) }
    }

    pub(super) async fn run(self, config: &OutboxConfig) -> anyhow::Result<()> {
        let mut tasks = JoinSet::new();
        let mut operator = Operator::connect(config, self.run.stamp.clone(), &mut tasks).await?;
        let adopting = operator.adopt(self.adoption, self.run.dry_run, self.run.confirm.as_ref());
        let Adopted { outbox, backlog, rival, shown, .. } = adopting.await??;
        let token = (self.run.dry_run && backlog > 0).then(|| shown.to_string());
        let dry_run = self.run.dry_run;
        // A dry run gives an identity that is not kept.
        let outbox = (!dry_run || self.adoption == Adoption::Moved).then_some(outbox);
        let discarded = if self.adoption == Adoption::WithoutBacklog { backlog } else { 0 };
        let text = if self.run.json {
            output::json_lines(&[json!({
                "action": "adopt", "outbox": outbox, "backlog": backlog, "discarded": discarded, "rival": rival,
                "dry_run": dry_run, "confirm": token,
            })])?
        } else {
            let confirmed =
                token.map(|token| format!("to act on these messages and no other: --confirm {token}\n"));
            self.text(outbox.as_deref(), backlog) + &confirmed.unwrap_or_default()
        };
        output::print(&text)?;
        if let Some(rival) = rival.filter(|_| self.adoption == Adoption::Moved) {
            tracing::warn!(
                "a relay served this outbox at {rival} within the last minute: if it still runs, the relays here fall \
                 silent again; stop it, then run this command once more"
            );
        }
        Ok(())
    }

    fn text(&self, outbox: Option<&str>, backlog: i64) -> String {
        let outbox = outbox.map_or("an outbox of its own".to_owned(), |outbox| format!("outbox {outbox}"));
        let is_dry = self.run.dry_run;
        let of_it = format!("{} of its backlog", counted(backlog, "message"));
        let backlog = match (self.adoption, is_dry) {
            (Adoption::Moved, false) => "it goes on as it was".to_owned(),
            (Adoption::Moved, true) => "it would go on as it was".to_owned(),
            (Adoption::WithoutBacklog, false) => {
                format!("{of_it} {}", for_one(backlog, "is given up", "are given up"))
            }
            (Adoption::WithoutBacklog, true) => format!("{of_it} would be given up"),
            (Adoption::WithBacklog, false) => format!("{of_it} {}", for_one(backlog, "is kept", "are kept")),
            (Adoption::WithBacklog, true) => format!("{of_it} would be kept"),
        };
        match is_dry {
            true => format!("this database would be the home of {outbox}: {backlog}; nothing is changed\n"),
            false => {
                format!(
                    "this database is the home of {outbox}: {backlog}; relays serve it within seconds, unless one still \
                     serves it where it was: `oncebox status` says so\n"
                )
            }
        }
    }
}
