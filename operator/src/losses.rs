//! Losses of streams after their acknowledgement: their state, and their repair by hand.

use std::{collections::BTreeMap, time::SystemTime};

use oncebox_connect::{
    clock::with_text,
    error::RelayError,
    postgres::Parameter,
    words::{counted, for_one},
};
use schemars::JsonSchema;
use serde::Serialize;
use tokio_postgres::Row;

use super::{
    Operator, Result,
    action::Done,
    rows::from_row,
    selection::{Moment, Selection},
    shown::RowSet,
    time::Time,
};

/// A stream's loss of messages that it had acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct LossStatus {
    /// The stream.
    pub stream: String,
    /// `reported`, `being sent again` or `sent again`.
    pub state: String,
    /// `tail`: its end is missing. `restored`: the same, since a backup of it was restored.
    /// `recreated`: it was made anew. `unproven`: nothing is left that
    /// proves up to where it is whole.
    pub kind: String,
    /// Of how many lanes.
    pub lanes: i64,
    /// The stream has the acknowledged messages at least up to here.
    pub sequence: i64,
    /// The highest sequence that it had acknowledged.
    pub lost_sequence: i64,
    /// When that was found.
    pub found_at: Time,
}

from_row!(LossStatus: stream, state, kind, lanes, sequence, lost_sequence, found_at);

impl LossStatus {
    /// Which messages are gone, and how many at most.
    pub(crate) fn what(&self) -> String {
        let Self { stream, kind, lanes, sequence, lost_sequence, .. } = self;
        let what = match kind.as_str() {
            "recreated" => {
                format!(
                    "stream {stream} was made anew: what it had acknowledged, up to {lost_sequence}, is gone"
                )
            }
            "tail" => format!("stream {stream} has lost messages between {sequence} and {lost_sequence}"),
            "restored" => format!(
                "stream {stream} was restored from a backup, without messages between {sequence} and {lost_sequence}"
            ),
            _ => format!(
                "stream {stream} has lost messages up to {lost_sequence}, and it is not known from where on"
            ),
        };
        format!("{what} ({})", counted(lanes, "lane"))
    }

    /// Whether an operator must have it sent again.
    #[must_use]
    pub fn is_reported(&self) -> bool {
        self.state == "reported"
    }
}

/// The losses of a lane that were not sent again.
#[derive(Default)]
struct LostInLane {
    /// Their names in the set of an action.
    losses: Vec<String>,
    /// The messages that would be sent again.
    messages: u64,
    /// Those that the operator's time leaves out.
    given_up: u64,
    /// The milestone from which on they are sent.
    milestone: Option<SystemTime>,
}

impl Operator {
    /// Takes into the set each loss of a stream that relays have reported and that was not sent
    /// again; counts the messages that would be sent. A loss that is found later changes the set,
    /// and so does another milestone: its lane is sent again as a whole, from there on.
    pub(crate) async fn find_losses(&self, of: &Selection, rows: &mut RowSet, done: &mut Done) -> Result<()> {
        let until = rows.until();
        for lane in self.lost(of).await?.into_values() {
            lane.losses.iter().for_each(|loss| rows.add(loss, until));
            done.add_lane(&lane);
        }
        Ok(())
    }

    /// Has the relays send again the messages that a stream acknowledged and then lost, as far as
    /// relays have reported the loss; counts the messages that are sent. With a set, leaves alone
    /// the lanes with a loss that is not in it. If the stream still has some of the messages, it
    /// answers that they are duplicates, within its window.
    ///
    /// With `since`, leaves out messages settled before the last milestone that is older than
    /// `since`, and gives them up: for a stream that was made anew on purpose.
    pub(crate) async fn resend(
        &mut self,
        of: &Selection,
        only: Option<&RowSet>,
        done: &mut Done,
    ) -> Result<()> {
        let (stream, since) = of_stream(of);
        let mut lost = self.lost(of).await?;
        lost.retain(|_, lane| only.is_none_or(|rows| lane.losses.iter().all(|loss| rows.has(loss))));
        for (lane, mut found) in lost {
            let parameters: [&dyn Parameter; 3] = [&lane, &stream, &since];
            let sent = self.change("send again what was lost", |sql| &sql.resend, &parameters, false).await?;
            // Another operator was faster, or the lane holds rows of another cluster.
            let Some((messages, milestone)) = sent.first().and_then(counted_by) else { continue };
            (found.messages, found.milestone) = (messages, milestone);
            done.add_lane(&found);
        }
        Ok(())
    }

    /// The losses of each lane, named with the operator's time and the milestone that it means:
    /// another one is another set.
    async fn lost(&self, of: &Selection) -> Result<BTreeMap<i16, LostInLane>> {
        let (stream, since) = of_stream(of);
        let mut lost: BTreeMap<i16, LostInLane> = BTreeMap::new();
        for row in self.query("find what was lost", &self.sql.find_lost, &[&stream]).await? {
            let loss = format!("{stream} {}", row.get::<_, &str>("loss"));
            lost.entry(row.get("lane")).or_default().losses.push(loss);
        }
        for (lane, found) in &mut lost {
            let counts = async |since: Option<SystemTime>| {
                let parameters: [&dyn Parameter; 3] = [lane, &stream, &since];
                let rows = self.query("count what was lost", &self.sql.count_lost, &parameters).await?;
                Ok::<_, RelayError>(rows.first().and_then(counted_by).unwrap_or_default())
            };
            (found.messages, found.milestone) = counts(since).await?;
            let Some(since) = since else { continue };
            found.given_up = counts(None).await?.0.saturating_sub(found.messages);
            let [since, milestone] = [Some(since), found.milestone]
                .map(|time| time.map(with_text).map(humantime::format_rfc3339_micros));
            let from = since.iter().chain(&milestone).map(|time| format!(" since {time}"));
            let from: String = from.collect();
            found.losses.iter_mut().for_each(|loss| loss.push_str(&from));
        }
        Ok(lost)
    }
}

impl Done {
    fn add_lane(&mut self, lane: &LostInLane) {
        self.done += lane.messages;
        self.given_up += lane.given_up;
        self.losses += 1;
        if lane.messages > 0 {
            self.milestones.push(lane.milestone);
        }
    }

    /// The time from which on messages are sent again; `None`: from the last one on that the
    /// stream is proved to have.
    #[must_use]
    pub fn since(&self) -> Option<SystemTime> {
        self.milestones.iter().min().copied().flatten()
    }

    /// Of losses: which messages the number is of, and the fate of the others.
    #[must_use]
    pub fn about_losses(&self) -> Option<String> {
        let from = match self.since() {
            _ if self.losses == 0 => return None,
            Some(time) => format!("the milestone of {}", humantime::format_rfc3339_seconds(with_text(time))),
            None => "the last message that the stream is proved to have".to_owned(),
        };
        let mut told = format!(
            "all that was settled since {from}, also what is settled until this is done; the stream drops those that \
             it still has as duplicates, within its window"
        );
        if self.given_up > 0 {
            let older = counted(self.given_up, "message");
            told += &format!(
                "; {older} settled before {} given up: `outbox verify --resend` finds them, if they are missing",
                for_one(self.given_up, "is", "are")
            );
        }
        Some(told)
    }
}

fn of_stream(of: &Selection) -> (&str, Option<SystemTime>) {
    (of.stream.as_deref().unwrap_or_default(), of.since.and_then(Moment::time))
}

fn counted_by(row: &Row) -> Option<(u64, Option<SystemTime>)> {
    row.get::<_, Option<i64>>("messages").map(|messages| (messages.unsigned_abs(), row.get("milestone")))
}
