//! `oncebox undo`.

use anyhow::bail;
use oncebox_connect::words::counted;
use oncebox_operator::{UndoRow, Verb};

use super::{On, Run, action, output};

#[derive(clap::Args)]
#[command(about = Verb::Undo.about)]
pub(crate) struct Undo {
    /// A row of the discard, or edit, in the audit; the command prints it
    #[arg(value_name = "ID", value_parser = clap::value_parser!(i64).range(1..))]
    audit: i64,
    #[command(flatten)]
    run: action::Run,
}

impl Run for Undo {
    async fn run(self, on: &On) -> anyhow::Result<u8> {
        let mut operator = on.acting(&self.run.who).await?;
        if !self.run.dry_run {
            let back = operator.undo(self.audit).await?;
            return self.run.report_of(["message", "messages"], ["bring back", "brought back"], back, None);
        }
        let rows = operator.undo_rows(self.audit).await?;
        if rows.is_empty() {
            bail!("row {} of the audit is no discard and no edit; nothing would be done", self.audit);
        }
        output::print(&output::listed(self.run.who.json, &rows, HEADS, cells)?)?;
        match rows.iter().filter(|row| row.obstacle.is_some()).count() {
            0 => Ok(0),
            blocked => bail!("{} of {} cannot come back, so none would", blocked, counted(rows.len(), "row")),
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
