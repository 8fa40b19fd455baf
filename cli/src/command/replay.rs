//! `oncebox outbox replay`.

use std::time::SystemTime;

use clap::{Arg, ArgAction, ArgGroup, ArgMatches};
use oncebox_connect::config::OutboxConfig;
use oncebox_operator::{Moment, ReplaySelection, RowSet, SubjectPattern};
use tokio::task::JoinSet;

use super::{action, output, parked};

const SELECTORS: [&str; 6] = ["key", "subject", "since", "until", "from-id", "to-id"];

/// The arguments of the command.
pub(crate) struct Replay {
    selection: ReplaySelection,
    since: Option<Moment>,
    until: Option<Moment>,
    request: String,
    limit: Option<u64>,
    run: action::Run,
}

pub(super) fn command(connection: impl Fn() -> Vec<Arg>) -> clap::Command {
    let text = |name, value, help| Arg::new(name).long(name).value_name(value).help(help);
    let id = |name, help| text(name, "ID", help).value_parser(clap::value_parser!(i64).range(1..));
    let all = Arg::new("all").long("all").action(ArgAction::SetTrue).help("Every settled message");
    clap::Command::new("replay")
        .about("Have the relays send settled messages again, with a broker id of their own and the same key")
        .arg(text("key", "KEY", "The message with this key"))
        .arg(
            text("subject", "PATTERN", "Messages with this subject; * is one token, a last > one or more")
                .value_parser(clap::value_parser!(SubjectPattern)),
        )
        .arg(action::moment("since", "Messages enqueued then or later"))
        .arg(action::moment("until", "Messages enqueued earlier"))
        .arg(id("from-id", "Messages with this id (header Oncebox-Id) or a higher one"))
        .arg(id("to-id", "Messages with this id or a lower one"))
        .arg(all.conflicts_with_all(SELECTORS))
        .group(ArgGroup::new("selection").args(SELECTORS).arg("all").required(true).multiple(true))
        .arg(
            text(
                "request",
                "NAME",
                "Leave out messages that were asked for under this name before, to go on after a failure",
            )
            .value_parser(action::bounded(255)),
        )
        .args(action::run())
        .args(action::of_rows())
        .args(connection())
        .args_conflicts_with_subcommands(true)
        .subcommand_negates_reqs(true)
        .subcommands(parked::of_replays(connection))
}

impl Replay {
    pub(super) fn new(flags: &ArgMatches) -> Self {
        let text = |name| flags.get_one::<String>(name).cloned();
        let name = || {
            format!("replay-{}-{}", humantime::format_rfc3339_millis(SystemTime::now()), std::process::id())
        };
        // A token stands for one replay: messages asked for under its name are left out then.
        let run = action::Run::new(flags);
        let confirmed = || run.confirm.map(|token| format!("confirm {token}"));
        Self {
            selection: ReplaySelection {
                key: text("key"),
                subject: flags.get_one::<SubjectPattern>("subject").cloned(),
                from_id: flags.get_one::<i64>("from-id").copied(),
                to_id: flags.get_one::<i64>("to-id").copied(),
                ..ReplaySelection::default()
            },
            since: flags.get_one::<Moment>("since").copied(),
            until: flags.get_one::<Moment>("until").copied(),
            request: text("request").or_else(confirmed).unwrap_or_else(name),
            limit: flags.get_one::<u64>("limit").copied(),
            run,
        }
    }

    pub(super) async fn run(self, config: &OutboxConfig) -> anyhow::Result<()> {
        let Self { selection, since, until, request, limit, run } = self;
        let mut tasks = JoinSet::new();
        let mut operator = run.connect(config, &mut tasks).await?;
        if !run.dry_run {
            tracing::info!(request, "should this be cut off, run it again with --request and this name");
        }
        let mut rows = match run.has_rows() {
            true => Some(RowSet::of_settled(&mut operator, "outbox replay", run.confirm.as_ref()).await?),
            false => None,
        };
        // A time ago is before the end of the set: of a dry run and of its confirmation the same.
        let now = match &rows {
            Some(rows) => rows.until(),
            None => operator.now().await?,
        };
        let at = |moment: Option<Moment>| moment.map(|moment| moment.at(now));
        let selection = ReplaySelection { since: at(since), until: at(until), ..selection };
        let mut before = 0;
        if let Some(rows) = &mut rows {
            before = operator.find_settled(&selection, &request, limit, rows).await?;
            run.check(rows)?;
        }
        let messages = match &rows {
            Some(rows) if run.dry_run => (rows.count() + rows.late()).min(limit.unwrap_or(u64::MAX)),
            only => {
                let done = operator.replay(&selection, &request, limit, only.as_ref()).await?;
                before = done.before;
                done.messages
            }
        };
        run.report_rows("replay", "asked the relays to replay", messages, rows.as_ref())?;
        report_late(rows.as_ref().filter(|_| run.dry_run));
        if messages > 0 {
            return Ok(());
        }
        if before > 0 {
            tracing::info!(messages = before, request, "all of it was asked for under this name before");
            return Ok(());
        }
        Err(action::nothing(&mut operator, "settled message", selection.key.as_deref()).await)
    }
}

/// Tells of settled messages behind one that still waits: which of those will be settled later,
/// nobody knows, so that a token cannot stand for them.
fn report_late(rows: Option<&RowSet>) {
    if let Some(rows) = rows.filter(|rows| rows.late() > 0) {
        tracing::warn!(
            "--confirm leaves out {} of these, enqueued after {}, since when a message waits to be sent: a replay \
             without --confirm takes them too",
            output::messages(rows.late()),
            output::time(rows.until())
        );
    }
}
