//! Replays: settled messages are sent again by a relay, under a broker id of their own.

use std::time::{Duration, SystemTime};

use oncebox_connect::postgres::{Parameter, typed};
use oncebox_relay::facts;

use super::{
    BATCH, Operator, Result,
    action::{Acting, Done, Listed, Page, Scan, Verb},
    failed,
    rows::query,
    selection::{Moment, Place, Selection},
};

/// Ages come as seconds in floating point.
const MARGIN_SECONDS: f64 = 0.001;

/// A settled message, which can be replayed.
pub(crate) struct Settled {
    id: i64,
    lane: i16,
    created_at: SystemTime,
    /// How often it was replayed.
    replays: i32,
}

impl Listed for Settled {
    /// The lanes, each up to the message that was settled last when the action began.
    async fn scans(operator: &Operator, of: &Selection, _: bool) -> Result<Vec<Scan>> {
        let low = of.from_id.unwrap_or(0).saturating_sub(1);
        let to = of.to_id.unwrap_or(i64::MAX);
        let rows = operator.query("read the lanes", &operator.sql.stands, &[]).await?;
        let scan = |lane, low, last| Scan { lanes: vec![lane], after: Place::Id(low), last };
        let ranges = rows.iter().map(|row| (row.get("lane"), low, row.get::<_, i64>("high").min(to)));
        let Some(key) = &of.key else {
            return Ok(ranges.map(|(lane, low, high)| scan(lane, low, high)).collect());
        };
        let Some((lane, id)) = operator.find_key(key, false).await? else { return Ok(Vec::new()) };
        let mine = ranges.filter(|(other, low, high)| *other == lane && *low < id && id <= *high);
        Ok(mine.map(|(lane, ..)| scan(lane, id - 1, id)).collect())
    }

    /// Only messages that were settled when the action began, and none that is parked or discarded.
    /// Left out are those that were asked for under the same name before, and those whose replay is
    /// still to be sent: one copy would answer two requests, and cancelling one would end both.
    async fn page(operator: &Operator, of: &Selection, scan: &Scan) -> Result<Page<Self>> {
        let (lane, after, high) = (scan.lanes[0], scan.after.id(), scan.last);
        if after >= high {
            return Ok(Page::new(Vec::new(), None));
        }
        let (subject, Selection { key, request, .. }) = (of.expression(), of);
        let [since, until] = [of.since, of.until].map(|moment| moment.and_then(Moment::time));
        let parameters: [&dyn Parameter; 9] =
            [&lane, &after, &high, &BATCH, key, &subject, &since, &until, request];
        let row = operator.client.query_typed_one(&operator.sql.settled, &typed(&parameters)).await;
        let row = row.map_err(failed("look at settled messages"))?;
        let (ids, times, replays): (Vec<i64>, Vec<SystemTime>, Vec<i32>) =
            (row.get("ids"), row.get("times"), row.get("replays"));
        let rows = ids.into_iter().zip(times).zip(replays);
        let rows = rows.map(|((id, created_at), replays)| Self { id, lane, created_at, replays });
        let next = row.get::<_, Option<i64>>("last_id").filter(|last| row.get("is_full") && *last < high);
        let [before, pending] = ["asked_for", "pending"].map(|name| row.get::<_, i64>(name).unsigned_abs());
        Ok(Page { rows: rows.collect(), next: next.map(Place::Id), before, pending })
    }

    /// One that was replayed since is another row.
    fn name(&self, _: &Acting<'_>) -> String {
        format!("{} {}", self.id, self.replays)
    }

    fn came_at(&self) -> SystemTime {
        self.created_at
    }

    /// Under the locks the statement looks again which messages may be replayed.
    async fn change(
        operator: &mut Operator,
        acting: &Acting<'_>,
        rows: &[Self],
        done: &mut Done,
    ) -> Result<()> {
        acting.is_one_of(&[Verb::Replay])?;
        let ids: Vec<i64> = rows.iter().map(|row| row.id).collect();
        let parameters: [&dyn Parameter; 3] = [&rows[0].lane, &ids, &acting.of.request];
        let asked = operator.change("request replays", |sql| &sql.replay, &parameters, true).await?;
        done.done += asked.len() as u64;
        Ok(())
    }
}

impl Operator {
    /// A time until which all that was enqueued is settled or set aside: `now`, or before the
    /// oldest message that waits, and before each open transaction that has enqueued, as far as
    /// this role sees when it began.
    pub(crate) async fn settled_until(&mut self, now: SystemTime) -> Result<SystemTime> {
        let (sql, schema, relays) = (self.sql.clone(), self.schema.clone(), self.relay_name.clone());
        let transaction = self.begin_status().await?;
        // Transactions first: one that commits meanwhile is among the messages that wait then.
        let open = &sql.status_enqueuing;
        let open = query(&transaction, "find open transactions", open, &[&1_i64, &relays]).await?;
        let log = query(&transaction, "find the live segments", &sql.log, &[]).await?;
        let log = log.first().map_or("log", |row| row.get(0));
        let lag = schema.sql(&facts::sql::LAG.replace("{log}", log));
        let lag = query(&transaction, "read the lag", &lag, &[]).await?;
        let begun = open.iter().map(|row| row.get::<_, f64>("transaction_seconds"));
        let ages = begun.chain(lag.iter().map(|row| row.get("lag_seconds")));
        let oldest = ages.fold(0.0, f64::max);
        let back = if oldest > 0.0 { oldest + MARGIN_SECONDS } else { 0.0 };
        // A row written by hand may have any time.
        let back = Duration::try_from_secs_f64(back).unwrap_or(Duration::MAX);
        Ok(now.checked_sub(back).unwrap_or(SystemTime::UNIX_EPOCH))
    }
}
