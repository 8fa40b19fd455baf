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
        .arg(
            text("since", "TIME", "Not what was settled long before this time, in UTC: 2030-01-31T08:00:00Z")
                .value_parser(clap::value_parser!(Moment)),
        )
        .args(run)
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
        let now = operator.now().await?;
        let since = since.map(|since| since.at(now));
        match operator.resend(&stream, since, run.dry_run).await? {
            Some(messages) => run.report("resend", "asked the relays to send again", messages),
            None => Err(anyhow::anyhow!(
                "no relay has reported that stream {stream:?} lost anything that is not sent again already; nothing \
                 was done"
            )),
        }
    }
}
