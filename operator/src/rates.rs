//! How fast an outbox fills and empties, from two looks a second apart.

use std::time::{Duration, SystemTime};

use oncebox_connect::postgres::Parameter;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::time::sleep;
use tokio_postgres::{Row, Transaction};

use super::{Operator, Result, rows::query};

/// Between the two looks.
const BETWEEN: Duration = Duration::from_secs(1);
/// Messages that are counted of each kind, at most.
const COUNTED_MAX: i64 = 100_000;

/// Messages per second, while one looked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct Rates {
    /// How long the rates were measured.
    pub seconds: f64,
    /// Messages committed by producers.
    pub enqueued_per_second: f64,
    /// Messages that relays are done with: a stream stored them, or they were set aside. Without
    /// those that committed late.
    pub settled_per_second: f64,
}

/// How far the lanes had come at the first look.
#[derive(Debug)]
pub(super) struct Marks {
    lanes: Vec<i16>,
    highs: Vec<i64>,
    newest: Vec<i64>,
    looked_at: Option<SystemTime>,
}

impl Marks {
    pub(super) fn new(rows: &[Row]) -> Self {
        Self {
            lanes: rows.iter().map(|row| row.get("lane")).collect(),
            highs: rows.iter().map(|row| row.get("high")).collect(),
            newest: rows.iter().map(|row| row.get("newest")).collect(),
            looked_at: rows.first().map(|row| row.get("looked_at")),
        }
    }

    /// Whether nothing was enqueued between these and later ones.
    pub(super) fn is_nothing_newer(&self, later: &Self) -> bool {
        self.newest == later.newest
    }

    async fn rates(&self, transaction: &Transaction<'_>, sql: &str) -> Result<Rates> {
        let Self { lanes, highs, newest, looked_at } = self;
        let parameters: [&dyn Parameter; 5] = [lanes, highs, newest, looked_at, &COUNTED_MAX];
        let rows = query(transaction, "measure the rates", sql, &parameters).await?;
        let Some(row) = rows.first() else { return Ok(Rates::default()) };
        // Nothing was looked at where there is no lane.
        let seconds = row.get::<_, Option<f64>>("seconds").unwrap_or_default();
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let per_second = |column: &str| row.get::<_, i64>(column) as f64 / seconds.max(0.001);
        Ok(Rates {
            seconds,
            enqueued_per_second: per_second("enqueued"),
            settled_per_second: per_second("settled"),
        })
    }
}

impl Operator {
    /// Waits a moment, with no transaction open, and looks again.
    pub(super) async fn rates_since(&mut self, marks: &Marks) -> Result<Rates> {
        sleep(BETWEEN).await;
        let sql = self.sql.clone();
        let transaction = self.begin_status().await?;
        marks.rates(&transaction, &sql.status_rates).await
    }
}
