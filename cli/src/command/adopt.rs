//! `oncebox adopt`.

use oncebox_connect::words::{counted, for_one};
use oncebox_operator::{Adopted, Adoption, Shown};
use serde_json::json;

use super::{On, Run, action, output};

/// Let relays serve an outbox that they take for a copy of another database's
#[derive(clap::Args)]
pub(crate) struct Adopt {
    #[command(flatten)]
    choice: Choice,
    #[command(flatten)]
    run: action::Run,
    #[arg(long, value_name = "TOKEN", help = action::CONFIRM, conflicts_with = "dry-run")]
    confirm: Option<Shown>,
}

#[derive(clap::Args)]
#[group(required = true, multiple = false)]
struct Choice {
    /// The original has moved here, and nothing serves it where it was: it goes on as it is
    #[arg(long = "move")]
    moved: bool,
    /// It is a copy: make it an outbox of its own, and give up all messages that were due, set
    /// aside or delayed
    #[arg(long)]
    discard_backlog: bool,
    /// It is a copy: make it an outbox of its own, and send those messages too, although the
    /// original sends them
    #[arg(long)]
    send_backlog: bool,
}

impl Run for Adopt {
    async fn run(self, on: &On) -> anyhow::Result<u8> {
        let adoption = match (self.choice.moved, self.choice.discard_backlog) {
            (true, _) => Adoption::Moved,
            (_, true) => Adoption::WithoutBacklog,
            _ => Adoption::WithBacklog,
        };
        let (dry_run, who) = (self.run.dry_run, &self.run.who);
        let mut operator = on.acting(who).await?;
        let adopting = operator.adopt(adoption, dry_run, self.confirm.as_ref());
        let Adopted { outbox, backlog, rival, shown, .. } = adopting.await??;
        let token = (dry_run && backlog > 0).then(|| shown.to_string());
        // A dry run gives an identity that is not kept.
        let outbox = (!dry_run || adoption == Adoption::Moved).then_some(outbox);
        let discarded = if adoption == Adoption::WithoutBacklog { backlog } else { 0 };
        let text = if who.json {
            output::json_lines(&[json!({
                "action": "adopt", "outbox": outbox, "backlog": backlog, "discarded": discarded, "rival": rival,
                "dry_run": dry_run, "confirm": token,
            })])?
        } else {
            let confirmed =
                token.map(|token| format!("to act on these messages and no other: --confirm {token}\n"));
            text(adoption, dry_run, outbox.as_deref(), backlog) + &confirmed.unwrap_or_default()
        };
        output::print(&text)?;
        if let Some(rival) = rival.filter(|_| adoption == Adoption::Moved) {
            tracing::warn!(
                "a relay served this outbox at {rival} within the last minute: if it still runs, the relays here fall \
                silent again; stop it, then run this command once more"
            );
        }
        Ok(0)
    }
}

fn text(adoption: Adoption, is_dry: bool, outbox: Option<&str>, backlog: i64) -> String {
    let outbox = outbox.map_or("an outbox of its own".to_owned(), |outbox| format!("outbox {outbox}"));
    let of_it = format!("{} of its backlog", counted(backlog, "message"));
    let backlog = match (adoption, is_dry) {
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
