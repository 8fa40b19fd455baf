//! `oncebox outbox verify`.

use oncebox_operator::{Moment, RowSet, Shown, SubjectPattern, Verification, VerificationFinding, Verified};
use serde_json::json;

use super::{On, Run, action, output};

/// Compare the log with a stream, message by message; changes nothing without --resend
#[derive(clap::Args)]
#[command(
    long_about = "Compare the log with a stream, message by message: what was acknowledged must be there, with the body \
    and the headers that it was enqueued with. What the stream may have let go, as its retention says, is \
    counted apart. Changes nothing without --resend. Exit codes: 0 nothing is missing or different, or all \
    that is will be sent again; 1 something is, or the comparison failed; 69 a server cannot be reached."
)]
pub(crate) struct Verify {
    /// The stream
    #[arg(long, value_name = "NAME")]
    stream: String,
    #[arg(long, value_name = "PATTERN", help = "What the stream should hold [default: what it takes]")]
    subject: Option<SubjectPattern>,
    #[arg(long, value_name = "TIME", help = action::with_forms("Messages enqueued then or later"))]
    since: Option<Moment>,
    /// Have the relays send again what is missing or different, under the same ids
    #[arg(long)]
    resend: bool,
    #[command(flatten)]
    run: action::Run,
    #[arg(long, value_name = "TOKEN", help = action::CONFIRM, conflicts_with = "dry-run", requires = "resend")]
    confirm: Option<Shown>,
}

impl Run for Verify {
    async fn run(self, on: &On) -> anyhow::Result<u8> {
        let Self { stream, subject, since, resend, mut run, confirm } = self;
        run.confirm = confirm;
        let mut operator = on.acting(&run.who).await?;
        let mut rows = if resend { run.rows(&operator, "outbox verify --resend").await? } else { None };
        // A time ago is before the end of the set: of a dry run and of its confirmation the same.
        let now = match &rows {
            Some(rows) => rows.until(),
            None => operator.now().await?,
        };
        let since = since.map(|since| since.at(now));
        let asked = Verification { stream, subject, since, resend, ..Verification::default() };
        let mut printed = Ok(true);
        let mut verified = operator
            .verify(on.config(), &asked, rows.as_mut(), |finding| {
                // A reader that has gone is no reason to leave anything unrepaired.
                if matches!(printed, Ok(true)) {
                    printed = line(finding, run.who.json).and_then(|line| Ok(output::print(&line)?));
                }
            })
            .await?;
        let printed = printed?;
        if let Some(rows) = rows.as_ref().filter(|_| !run.dry_run) {
            run.check(rows)?;
            verified.resent = operator.send_shown(&verified, rows).await?;
        }
        if printed {
            output::print(&summary(&verified, &run, rows.as_ref())?)?;
        }
        let is_repaired = resend && !run.dry_run;
        Ok(u8::from(!verified.is_whole() && !is_repaired))
    }
}

fn line(finding: &VerificationFinding, json: bool) -> anyhow::Result<String> {
    if json {
        return Ok(output::json_lines(&[finding])?);
    }
    let text = match finding {
        VerificationFinding::Altered(copy) => format!(
            "altered    sequence {}, id {}, key {}: {}",
            copy.sequence,
            copy.id,
            copy.key,
            copy.differs.join(", ")
        ),
        VerificationFinding::Unlogged(copy) => {
            format!("unlogged   sequence {}, id {}, key {}", copy.sequence, copy.id, copy.key)
        }
        VerificationFinding::Message(message) => format!(
            "{:9}  id {}, key {}, to {}, enqueued {}",
            message.problem,
            message.id,
            message.key,
            message.subject,
            output::time(message.enqueued_at)
        ),
        other => format!("{other:?}"),
    };
    Ok(output::clean(&text).replace('\n', " ") + "\n")
}

fn summary(verified: &Verified, run: &action::Run, rows: Option<&RowSet>) -> anyhow::Result<String> {
    let token = run.token(rows);
    if run.who.json {
        let mut document = json!(verified);
        if let Some(token) = token {
            document["confirm"] = token.into();
        }
        return Ok(output::json_lines(&[document])?);
    }
    let Verified { stream, first_sequence, last_sequence, missing, different, .. } = verified;
    let mut text = format!(
        "{} of the log compared with stream {stream}, sequences {first_sequence} to {last_sequence}: {missing} \
         missing, {different} different\n",
        output::messages(verified.messages)
    );
    let others = [
        (verified.parked, "set aside, to be sent or sent again, and not looked for"),
        (verified.superseded, "altered in one copy, and whole in another"),
        (verified.unproven, "not there, and the stream may have let them go"),
        (verified.copies, "stored more than once"),
        (verified.unlogged, "in the stream, and not in the log, or no more"),
    ];
    for (count, what) in others.into_iter().filter(|(count, _)| *count > 0) {
        text += &format!("{count} {what}\n");
    }
    if verified.resent > 0 {
        let verb = if run.dry_run { "would ask" } else { "asked" };
        text += &format!("{verb} the relays to send again {}\n", output::messages(verified.resent));
    }
    let confirm = token.zip(rows).map(|(token, rows)| action::confirmation("resend", &token, rows));
    text += &confirm.unwrap_or_default();
    Ok(text)
}
