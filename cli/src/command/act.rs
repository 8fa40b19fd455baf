//! The commands of the catalogue's actions: one run for all of them.

use std::fs;

use anyhow::{Context as _, anyhow};
use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Args as _, Command, builder::Resettable};
use oncebox_connect::{
    config::ConfigError,
    error::RelayError,
    words::{counted, for_one},
};
use oncebox_operator::{Done, Kind, Operator, Order, Payload, RowSet, Verb};
use serde_json::json;

use super::{On, Run, action, canary, edit, given, output, saga};

/// An action of the catalogue.
pub(crate) struct Act {
    order: Order,
    /// The file that has the new payload of an edit.
    payload: Option<String>,
    run: action::Run,
}

pub(super) fn command(verb: Verb) -> Command {
    let command = arguments(verb).about(verb.about);
    match verb.more {
        "" => command,
        more => command.long_about(format!("{}\n\n{more}", verb.about)),
    }
}

fn arguments(verb: Verb) -> Command {
    let command = Command::new(verb.word());
    let selectors = action::selectors(verb.kind, verb.selectors());
    let others = action::selectors(verb.kind, verb.others);
    if verb.is_edit() {
        let alone = selectors.into_iter().map(|arg| arg.long(Resettable::Reset).required(true));
        let command = action::Run::augment_args(command.args(alone).args(others));
        return edit::with_reason(action::Confirm::augment_args(command));
    }
    if verb.kind == Kind::Losses {
        let command = command.args(selectors.into_iter().map(|arg| arg.required(true)));
        return action::Confirm::augment_args(action::Run::augment_args(command)).args(others);
    }
    let names: Vec<_> = selectors.iter().map(|arg| arg.get_id().clone()).collect();
    let all = Arg::new("all").long("all").action(ArgAction::SetTrue).help(every(verb.kind));
    let group = ArgGroup::new("selection").args(&names).arg("all").required(true).multiple(true);
    let command = command.args(selectors).arg(all.conflicts_with_all(names)).group(group);
    let command = action::Run::augment_args(action::Limit::augment_args(command));
    let command = action::Confirm::augment_args(command);
    let command = if verb.has_rate() { action::Rate::augment_args(command) } else { command };
    let command = match verb.has_canary() {
        true => canary::Options::augment_args(command),
        false => command.args(others),
    };
    match verb {
        Verb::SkipStep => command.mut_arg("step", |step| step.required(true)),
        _ => command,
    }
    .mut_arg("limit", |limit| match verb.kind {
        Kind::Sagas => limit.help("Stop after so many sagas"),
        _ => limit,
    })
}

/// The effect of `--all`.
fn every(kind: Kind) -> String {
    match kind {
        Kind::Sagas => "Every saga that has not finished".to_owned(),
        kind => format!("Every {}", kind.thing()),
    }
}

impl Act {
    pub(super) fn new(verb: Verb, flags: &ArgMatches) -> Result<Self, ConfigError> {
        let mut fields = action::fields(verb.selectors(), flags);
        fields.extend(action::fields(verb.others, flags));
        let (mut payloads, fields): (Vec<_>, _) = fields.into_iter().partition(|(name, _)| name == "payload");
        let has_selection = !verb.is_edit() && verb.kind != Kind::Losses;
        let is_all = has_selection && flags.get_flag("all");
        let confirm = given::<action::Confirm>(flags).confirm;
        let run = action::Run { confirm, ..given(flags) };
        let mut order = Order::new(verb, is_all, fields).map_err(|problem| ConfigError(vec![problem]))?;
        order.limit = if has_selection { given::<action::Limit>(flags).limit } else { None };
        order.rate = if verb.has_rate() { given::<action::Rate>(flags).rate } else { None };
        order.shown = run.confirm;
        order.canary = if verb.has_canary() { given::<canary::Options>(flags).wanted() } else { None };
        Ok(Self { order, payload: payloads.pop().map(|(_, path)| path), run })
    }
}

impl Run for Act {
    async fn run(self, on: &On) -> anyhow::Result<u8> {
        let Self { mut order, payload, mut run } = self;
        let verb = order.verb;
        if let Some(path) = payload {
            let read = fs::read(&path).with_context(|| format!("read the payload from {path}"))?;
            order.payload = Some(Payload(read));
        }
        let mut operator = run.connect(on, order.rate).await?;
        if verb == Verb::Replay && !run.dry_run {
            let request = order.request();
            tracing::info!(request, "should this be cut off, run it again with --request and this name");
        }
        let counted = if run.has_rows() { order.count(&mut operator).await? } else { Default::default() };
        let rows = counted.rows.as_ref();
        rows.map_or(Ok(()), |rows| run.check(rows))?;
        if let Some((of, edit)) = order.edit().map_err(RelayError::Refused)?.filter(|_| run.dry_run) {
            let preview = operator.preview_edit(&of, &edit, edit.payload.is_some()).await?;
            return output::end(&edit::shown(&run, &preview, rows)?);
        }
        let done = match run.dry_run {
            true => counted.done,
            false => order.run(&mut operator, on.config.as_deref(), rows).await?,
        };
        if order.canary.is_some() && !run.dry_run {
            return canary::begun(&mut operator, done.canary, run.who.json).await;
        }
        if verb.kind == Kind::Losses && done.is_nothing() {
            return Err(nothing(&mut operator, &order).await);
        }
        if verb.word() == "discard" || verb.is_edit() {
            run.undo = operator.last_discard().await?;
        }
        if let Some(key) = &done.key {
            return output::end(&edit::done(&run, key)?);
        }
        run.more = done.about_losses().map(|line| {
            let since = done.since().map(output::time);
            Box::new((line, json!({ "since": since, "given_up": done.given_up })))
        });
        if run.dry_run && verb == Verb::BuryFailing {
            let line = "those that their stream has no more will be forgotten, not buried: a dry run does not ask it";
            run.more = Some(Box::new((line.to_owned(), json!({}))));
        }
        let settled = rows.filter(|_| run.dry_run && verb.kind == Kind::Settled);
        let most = order.limit.unwrap_or(u64::MAX);
        let count = settled.map_or(done.done, |rows| (rows.count() + rows.late()).min(most));
        run.report(verb, count, rows)?;
        explain(&order, &done, settled);
        match done.is_nothing() && count == 0 {
            true => Err(nothing(&mut operator, &order).await),
            false => Ok(0),
        }
    }
}

/// The error of an action that found nothing to act on.
async fn nothing(operator: &mut Operator, order: &Order) -> anyhow::Error {
    let key = order.fields.iter().find(|(name, _)| name == "key").map(|(_, key)| key.as_str());
    match (order.verb.kind, order.fields.iter().find(|(name, _)| name == "stream")) {
        (Kind::Sagas, _) => saga::nothing(operator, order).await,
        (Kind::Losses, Some((_, stream))) => anyhow!(
            "no relay has reported that stream {stream:?} lost anything that is not sent again already; nothing \
             was done"
        ),
        (kind, _) => action::nothing(operator, kind, key).await,
    }
}

/// Tells which things were left out or left alone, and why.
fn explain(order: &Order, done: &Done, settled: Option<&RowSet>) {
    let (busy, gone) = match order.verb {
        Verb::BuryFailing => ("at work: try again", "forgotten"),
        _ => ("due already: run now, unless the consumer does not run", "left alone"),
    };
    for (count, fate, why) in [
        (done.busy, "left alone", busy),
        (done.gone, gone, "not in the stream any more: nobody delivers it again"),
        (done.elsewhere, "left alone", "from no stream: nobody can fetch it"),
        (
            done.incomplete,
            "left alone",
            "its payload is in no bucket: have it put again with `oncebox outbox replay --key`, where it was enqueued",
        ),
    ] {
        if count > 0 {
            tracing::warn!("{} {fate}, {why}", output::messages(count));
        }
    }
    if done.before > 0 && done.done == 0 {
        let request = order.request();
        tracing::info!(messages = done.before, request, "all of it was asked for under this name before");
    }
    if done.edited > 0 {
        let letters = counted(done.edited, "dead letter");
        tracing::warn!(
            "{letters} taken out that nobody handles: an edit had come in {} place; see `oncebox trace KEY`",
            for_one(done.edited, "its", "their")
        );
    }
    if done.pending > 0 {
        let (messages, their) = (output::messages(done.pending), for_one(done.pending, "its", "their"));
        tracing::warn!(
            "{messages} left out: {their} last replay is still to be sent; see `oncebox outbox replay list`"
        );
    }
    saga::report_letters(done);
    // It is not known which settled messages after one that still waits will be settled later, so a
    // token cannot stand for them.
    if let Some(rows) = settled.filter(|rows| rows.late() > 0) {
        tracing::warn!(
            "--confirm leaves out {} of these, enqueued after {}, since when a message waits to be sent: a replay \
             without --confirm takes them too",
            output::messages(rows.late()),
            output::time(rows.until())
        );
    }
}
