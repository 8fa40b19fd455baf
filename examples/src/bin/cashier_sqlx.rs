//! The cashier of a service on sqlx: the inbox has a small pool of its own for claims and the last
//! writes, and the handler works over the service's pool of sqlx, before and after its effects.
//!
//! The environment is that of `cashier`; the tables are those of `src/cashier/schema.sql`, and
//! `visit`.

use anyhow::Result;
use oncebox_examples::{
    cashier::{self, Cashier, Client, Settled},
    config,
    order::OrderPlaced,
};
use oncebox_inbox::{Answer, Context, HandlerError, LeasedContext, LeasedHandler, Outcome};
use sqlx::{PgPool, postgres::PgPoolOptions};

/// Counts the runs of each order. Each statement is a transaction of its own: runs that die count.
const VISIT: &str = "INSERT INTO visit (order_id, runs, ends) VALUES ($1, $2, $3)
                     ON CONFLICT (order_id) DO UPDATE
                     SET runs = visit.runs + excluded.runs, ends = visit.ends + excluded.ends";

struct OverSqlx {
    cashier: Cashier,
    own: PgPool,
}

impl OverSqlx {
    async fn visit(&self, order: i64, runs: i64, ends: i64) -> Result<(), sqlx::Error> {
        sqlx::query(VISIT).bind(order).bind(runs).bind(ends).execute(&self.own).await.map(drop)
    }
}

impl LeasedHandler for OverSqlx {
    type Message = OrderPlaced;
    type Reply = Settled;

    async fn handle(
        &self,
        cx: &LeasedContext<'_>,
        placed: OrderPlaced,
    ) -> Result<Outcome<Settled>, HandlerError> {
        let order = placed.order;
        self.visit(order, 1, 0).await?;
        let outcome = self.cashier.handle(cx, placed).await?;
        self.visit(order, 0, 1).await?;
        Ok(outcome)
    }

    async fn finish(&self, cx: Context<'_>, answer: &Answer<Settled>) -> Result<(), HandlerError> {
        self.cashier.finish(cx, answer).await
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let own = PgPoolOptions::new().max_connections(8).connect_lazy(&config::required("DATABASE_URL")?)?;
    cashier::serve(
        OverSqlx { cashier: Cashier { gateway: Client::new(config::required("GATEWAY")?) }, own },
        4,
    )
    .await
}
