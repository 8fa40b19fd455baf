//! `oncebox undo`.

use anyhow::bail;
use clap::{Arg, ArgMatches, Command};
use oncebox_connect::{config::OutboxConfig, words::counted};
use oncebox_operator::{Operator, UndoRow, Verb};
use tokio::task::JoinSet;

use super::{action, output};

/// The arguments.
pub(crate) struct Undo {
    audit_id: i64,
    run: action::Run,
}

pub(super) fn command(options: Vec<Arg>) -> Command {
    let run = action::without_limit();
    Command::new("undo")
        .about(Verb::Undo.about)
        .arg(
            Arg::new("audit")
                .value_name("ID")
                .required(true)
                .value_parser(clap::value_parser!(i64).range(1..))
                .help("A row of the discard, or edit, in the audit; the command prints it"),
        )
        .args(run)
        .args(options)
}

impl Undo {
    pub(super) fn new(flags: &ArgMatches) -> Self {
        let audit_id = flags.get_one::<i64>("audit").copied().unwrap_or_default();
        Self { audit_id, run: action::Run::new(flags) }
    }

    pub(super) async fn run(self, config: &OutboxConfig) -> anyhow::Result<()> {
        let mut tasks = JoinSet::new();
        let mut operator = Operator::connect(config, self.run.stamp.clone(), &mut tasks).await?;
        if !self.run.dry_run {
            let back = operator.undo(self.audit_id).await?;
            return self.run.report_of(["message", "messages"], ["bring back", "brought back"], back, None);
        }
        let rows = operator.undo_rows(self.audit_id).await?;
        if rows.is_empty() {
            bail!("row {} of the audit is no discard and no edit; nothing would be done", self.audit_id);
        }
        output::print(&output::listed(self.run.json, &rows, HEADS, cells)?)?;
        let blocked = rows.iter().filter(|row| row.obstacle.is_some()).count();
        match blocked {
            0 => Ok(()),
            _ => bail!("{} of {} cannot come back, so none would", blocked, counted(rows.len(), "row")),
        }
    }
}

const HEADS: [&str; 6] = ["ID", "WHERE", "KEY", "SUBJECT", "REASON", "CANNOT COME BACK"];
fn cells(row: &UndoRow) -> [String; 6] {
    let place = row.scope.clone().unwrap_or_else(|| "outbox".to_owned());
    let texts = [&row.key, &row.subject, &row.reason, &row.obstacle];
    let [key, subject, reason, obstacle] = texts.map(|text| text.clone().unwrap_or_default());
    [row.id.to_string(), place, key, subject, reason, obstacle]
}
