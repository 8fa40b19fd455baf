//! The part of a status after the streams: consumers, and the inboxes of this database.

use std::time::Duration;

use oncebox_operator::{ConsumerStatus, InboxStatus, Status, Survey};

use super::output::{self, time};

/// A line for each consumer, and why some are not shown.
pub(super) fn consumers(nats: &Survey) -> String {
    let rows = nats.consumers.iter().map(|consumer| {
        let most = consumer.unacknowledged_max.map(|most| format!(" of {most}")).unwrap_or_default();
        [
            consumer.stream.clone(),
            consumer.name.clone(),
            consumer.pending.to_string(),
            format!("{}{most}", consumer.unacknowledged),
            consumer.redelivered.to_string(),
            age(consumer.delivered_seconds),
            age(consumer.acknowledged_seconds),
            state(consumer),
        ]
    });
    let rows: Vec<[String; 8]> = rows.collect();
    let mut text = String::new();
    if !rows.is_empty() {
        let heads =
            ["STREAM", "CONSUMER", "PENDING", "UNACKED", "REDELIVERED", "DELIVERED", "ACKED", "PULLED BY"];
        text += &output::table(heads, &rows);
    }
    for problem in nats.unasked.iter().filter(|problem| problem.starts_with("the consumers")) {
        text += &output::clean(&format!("not shown: {problem}\n"));
    }
    if text.is_empty() { text } else { text + "\n" }
}

fn state(consumer: &ConsumerStatus) -> String {
    match consumer.paused_until {
        Some(until) => format!("paused until {}", time(until)),
        None if consumer.is_awaited => "its service".to_owned(),
        None => "nobody".to_owned(),
    }
}

/// A line for each inbox with something to tell, and how many are left out.
pub(super) fn inboxes(status: &Status, all: bool) -> String {
    let Some(inboxes) = &status.inboxes else {
        return "the inboxes are not shown: this role may not read them\n\n".to_owned();
    };
    let is_shown = |inbox: &&InboxStatus| all || inbox.failing + inbox.dead + inbox.snoozed > 0;
    let rows = inboxes.iter().filter(is_shown).map(|inbox| {
        let capped = |number: i64| match inbox.is_capped && number > 0 {
            true => format!("at least {number}"),
            false => number.to_string(),
        };
        let oldest = if inbox.failing > 0 { age(Some(inbox.failing_oldest_seconds)) } else { String::new() };
        [
            inbox.scope.clone().unwrap_or_else(|| "(others)".to_owned()),
            capped(inbox.failing),
            oldest,
            capped(inbox.dead),
            capped(inbox.snoozed),
            inbox.reason.clone().unwrap_or_default(),
        ]
    });
    let rows: Vec<[String; 6]> = rows.collect();
    let mut text = String::new();
    if !rows.is_empty() {
        text += &output::table(["INBOX", "FAILING", "OLDEST", "DEAD", "SNOOZED", "LAST REASON"], &rows);
    }
    match inboxes.len() - rows.len() {
        0 => {}
        1 => text += "1 inbox has nothing failing, dead or snoozed; --all shows it\n",
        hidden => {
            text += &format!("{hidden} inboxes have nothing failing, dead or snoozed; --all shows them\n")
        }
    }
    if text.is_empty() { text } else { text + "\n" }
}

/// To the second: `4m 3s`.
fn age(seconds: Option<f64>) -> String {
    let age = seconds.map(|seconds| {
        Duration::from_secs(Duration::try_from_secs_f64(seconds).unwrap_or_default().as_secs())
    });
    age.map_or("never".to_owned(), |age| humantime::format_duration(age).to_string())
}
