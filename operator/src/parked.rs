//! Messages set aside - dead ones, parked ones, replays: list, show, retry, give up.

use std::time::SystemTime;

use oncebox_connect::postgres::Parameter;
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    BATCH, Operator, Result,
    action::{Acting, Done, Listed, Page, Scan, Verb},
    is_selected, next_id,
    payload::{ShownPayload, shown_payload},
    rows::{FromRow, from_row},
    selection::{Place, Selection},
    time::Time,
};

/// How far `behind` of a [`ParkedDetails`] counts.
const BEHIND_MAX: i64 = 100_000;

/// A message that is set aside, without headers and payload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct ParkedMessage {
    /// Its place in the log.
    pub id: i64,
    /// Its lane.
    pub lane: i16,
    /// Its key, which every command takes.
    pub key: String,
    /// `dead`, `parked` (to be tried again) or `waiting` (for another of its ordering key, or with
    /// others of which a few are tried), as in a trace: of the message, or of its replay if that
    /// has a number.
    pub state: &'static str,
    /// Its subject.
    pub subject: String,
    /// Its ordering key.
    pub ordering_key: Option<String>,
    /// How often it was tried in vain.
    pub attempts: i32,
    /// When it is tried again.
    pub next_attempt_at: Option<Time>,
    /// When it died; `None` when it is parked and will be tried again.
    pub died_at: Option<Time>,
    /// Why.
    pub reason: String,
    /// 0 for a message that was never stored, else the number of the replay that is meant.
    pub replay: i32,
    /// When it was enqueued.
    pub created_at: Time,
    /// The size of its payload.
    pub payload_bytes: i64,
    /// When it came to be as it is, or an operator had it tried: the token of a dry run before does
    /// not stand for it any more.
    #[serde(skip)]
    came_at: SystemTime,
    /// Whether it waits for no other of its ordering key.
    #[serde(skip)]
    is_first: bool,
}

/// All about one parked or dead message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct ParkedDetails {
    /// The columns of a list.
    #[serde(flatten)]
    pub message: ParkedMessage,
    /// When it was set aside.
    pub parked_at: Time,
    /// Its own headers, a JSON object.
    pub headers: serde_json::Value,
    /// How many messages of its ordering key wait for it, counted to 100,000.
    pub behind: i64,
    /// Its payload, if asked for.
    #[serde(flatten)]
    pub payload: Option<ShownPayload>,
}

impl Operator {
    /// The messages and replays that are set aside, in the order of ids, `limit` at most.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn parked(&self, of: &Selection, limit: usize) -> Result<Vec<ParkedMessage>> {
        self.list(of, limit, |_| true).await
    }

    /// All about the parked or dead message with this key; `None` when there is none.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn show(&self, key: &str, with_payload: bool) -> Result<Option<ParkedDetails>> {
        let rows = self.query("show a message", &self.sql.show, &[&key, &with_payload, &BEHIND_MAX]).await?;
        Ok(rows.first().map(FromRow::from_row))
    }
}

impl Listed for ParkedMessage {
    async fn scans(operator: &Operator, of: &Selection, to_act: bool) -> Result<Vec<Scan>> {
        let mut scan = Scan::from(of);
        if let Some(id) = of.id {
            (scan.after, scan.last) = (Place::Id(id - 1), id);
        }
        scan.lanes = match (&of.key, &of.ordering_key) {
            (Some(key), _) if of.id.is_none() => {
                let Some((lane, id)) = operator.find_key(key, true).await? else { return Ok(Vec::new()) };
                (scan.after, scan.last) = (Place::Id(id - 1), id);
                vec![lane]
            }
            (_, Some(ordering_key)) if of.id.is_none() => {
                let rows = operator.query("find a lane", &operator.sql.lane_of, &[ordering_key]).await?;
                rows.iter().map(|row| row.get(0)).collect()
            }
            _ => operator.lanes().await?,
        };
        if !to_act {
            return Ok(vec![scan]);
        }
        let alone = |lane: &i16| Scan { lanes: vec![*lane], after: scan.after.clone(), last: scan.last };
        Ok(scan.lanes.iter().map(alone).collect())
    }

    async fn page(operator: &Operator, of: &Selection, scan: &Scan) -> Result<Page<Self>> {
        let (subject, reason, after) = (of.expression(), of.part_of_reason(), scan.after.id());
        let Selection { id, key, ordering_key, request, reason_is, subject_is, .. } = of;
        let (name, most) = (of.kind.in_sql(), if id.is_some() { 1 } else { BATCH });
        let parameters: [&dyn Parameter; 12] = [
            &scan.lanes,
            &after,
            &most,
            key,
            &subject,
            &reason,
            ordering_key,
            &name,
            request,
            id,
            reason_is,
            subject_is,
        ];
        let rows =
            operator.query("look at what is set aside", &operator.sql.list_parked, &parameters).await?;
        let next = next_id(&rows).filter(|id| *id < scan.last).map(Place::Id);
        Ok(Page::new(rows.iter().filter(is_selected).map(Self::from_row).collect(), next))
    }

    fn name(&self, _: &Acting<'_>) -> String {
        self.id.to_string()
    }

    fn came_at(&self) -> SystemTime {
        self.came_at
    }

    /// A message that waits for another has no time of its own.
    fn can(&self, acting: &Acting<'_>) -> bool {
        acting.verb != Verb::RetryParked || self.is_first
    }

    /// Under the lane's lock. A message that is given up is sent by no relay, and the messages that
    /// waited for it go on; of a replay only that copy is given up.
    async fn change(
        operator: &mut Operator,
        acting: &Acting<'_>,
        rows: &[Self],
        done: &mut Done,
    ) -> Result<()> {
        const GIVES_UP: [Verb; 3] = [Verb::DiscardDead, Verb::DiscardParked, Verb::CancelReplays];
        let ids: Vec<i64> = rows.iter().map(|row| row.id).collect();
        let parameters: [&dyn Parameter; 3] = [&rows[0].lane, &ids, &acting.of.kind.in_sql()];
        let [lane_and_ids @ .., _] = &parameters;
        let changed = match acting.verb {
            Verb::RetryDead => operator.change("retry messages", |sql| &sql.retry, lane_and_ids, true),
            Verb::RetryParked => {
                operator.change("try messages now", |sql| &sql.retry_parked, lane_and_ids, true)
            }
            _ => {
                acting.is_one_of(&GIVES_UP)?;
                operator.change("give messages up", |sql| &sql.give_up, &parameters, true)
            }
        };
        done.done += changed.await?.len() as u64;
        Ok(())
    }
}

/// How a row of the table `parked` stands, in the words of every command.
pub(super) fn parking_state(died_at: Option<Time>, next_attempt_at: Option<Time>) -> &'static str {
    match (died_at, next_attempt_at) {
        (Some(_), _) => "dead",
        (None, Some(_)) => "parked",
        (None, None) => "waiting",
    }
}

from_row!(ParkedMessage:
    id, lane, key, subject, ordering_key, attempts, replay, created_at, payload_bytes, is_first, reason = "error",
    next_attempt_at, died_at = "dead_at";
    row =>
    state: parking_state(row.get("dead_at"), row.get("next_attempt_at")),
    came_at: row.get::<_, Option<SystemTime>>("dead_at").unwrap_or_else(|| row.get("parked_at")).max(
        row.get::<_, Option<SystemTime>>("asked_at").unwrap_or(SystemTime::UNIX_EPOCH)));
from_row!(ParkedDetails: parked_at, behind; row =>
    message: ParkedMessage::from_row(row),
    headers: serde_json::from_str(row.get("headers")).unwrap_or_default(),
    payload: shown_payload(row));
