//! `oncebox outbox resend`.

use clap::{Arg, ArgMatches};
use oncebox_connect::config::OutboxConfig;
use oncebox_operator::{Moment, Operator};
use tokio::task::JoinSet;

use super::action;

/// The arguments of the command.
pub(crate) struct Resend {
    stream: String,
    since: Option<Moment>,
    run: action::Run,
}

pub(super) fn command(connection: Vec<Arg>) -> clap::Command {
    let run = action::run().into_iter().filter(|arg| arg.get_id() != "limit");
    let text = |name, value, help| Arg::new(name).long(name).value_name(value).help(help);
    clap::Command::new("resend")
        .about("Have the relays send again what a stream lost after it had acknowledged it")
        .arg(text("stream", "NAME", "The stream that a relay reported; see `oncebox status`").required(true))
        .arg(action::moment("since", "Not what was settled long before this time"))
        .args(run)
        .arg(action::confirm())
        .args(connection)
}

impl Resend {
    pub(super) fn new(flags: &ArgMatches) -> Self {
        Self {
            stream: flags.get_one::<String>("stream").cloned().unwrap_or_default(),
            since: flags.get_one::<Moment>("since").copied(),
            run: action::Run::new(flags),
        }
    }

    pub(super) async fn run(self, config: &OutboxConfig) -> anyhow::Result<()> {
        let Self { stream, since, run } = self;
        let mut tasks = JoinSet::new();
        let mut operator = Operator::connect(config, run.stamp.clone(), &mut tasks).await?;
        let mut rows = run.rows(&operator, "outbox resend").await?;
        // A time ago is before the end of the set: of a dry run and of its confirmation the same.
        let now = match &rows {
            Some(rows) => rows.until(),
            None => operator.now().await?,
        };
        let since = since.map(|since| since.at(now));
        let mut messages = None;
        if let Some(rows) = &mut rows {
            messages = operator.find_losses(&stream, since, rows).await?;
            run.check(rows)?;
        }
        if !run.dry_run {
            messages = operator.resend(&stream, since, rows.as_ref()).await?;
        }
        match messages {
            Some(messages) => {
                run.report_rows("resend", "asked the relays to send again", messages, rows.as_ref())
            }
            None => Err(anyhow::anyhow!(
                "no relay has reported that stream {stream:?} lost anything that is not sent again already; nothing \
                 was done"
            )),
        }
    }
}
