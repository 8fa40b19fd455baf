//! The inventory: reserves an order while there is stock, and releases it again.

use oncebox_inbox::{Context, Handler, HandlerError, Outcome};
use oncebox_saga::{Action, Barrier, Compensation, InvalidBarrier, Replier};
use serde::{Deserialize, Serialize};

use super::Order;

/// The service's own tables.
pub const SCHEMA: &str = include_str!("inventory/schema.sql");

/// Who consumes: the name under which keys are remembered.
pub const SCOPE: &str = "inventory-service:stock";

/// The answers of the inventory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stock {
    /// It is put aside for this order.
    Reserved,
    /// There is not so much of it.
    SoldOut,
    /// The order was given up before this came: never reserve.
    TooLate,
    /// Nothing is put aside for this order, and nothing will be.
    Released,
}

/// Reserves and releases.
#[derive(Clone, Debug)]
pub struct Inventory {
    barrier: Barrier,
    replier: Replier,
}

impl Inventory {
    /// The service, which answers commands with this.
    ///
    /// # Errors
    /// Never: the barrier's name is a good one.
    pub fn new(replier: Replier) -> Result<Self, InvalidBarrier> {
        Ok(Self { barrier: Barrier::new("inventory-service:reserve")?, replier })
    }

    /// This service for one order: its barrier has the order's key, with messages of any key.
    pub(super) fn of(&self, order: &Order) -> Result<Self, HandlerError> {
        let barrier = self.barrier.for_action(order.key()?.step("reserve")?);
        Ok(Self { barrier, replier: self.replier.clone() })
    }

    pub(super) async fn reserve(
        &self,
        cx: &Context<'_>,
        order: &Order,
    ) -> Result<Outcome<Stock>, HandlerError> {
        match self.barrier.action(cx).await? {
            Action::Act => {}
            Action::Acted => return Ok(Outcome::done(Stock::Reserved)),
            Action::Refused => return Ok(Outcome::reject(Stock::TooLate)),
        }
        let sql = include_str!("inventory/reserve.sql");
        match cx.transaction().execute(sql, &[&order.id, &order.item, &order.count]).await? {
            1 => Ok(Outcome::done(Stock::Reserved)),
            _ => {
                self.barrier.had_no_effect(cx).await?;
                Ok(Outcome::reject(Stock::SoldOut))
            }
        }
    }

    pub(super) async fn release(
        &self,
        cx: &Context<'_>,
        order: &Order,
    ) -> Result<Outcome<Stock>, HandlerError> {
        if self.barrier.compensation(cx).await? == Compensation::Undo {
            cx.transaction().execute(include_str!("inventory/release.sql"), &[&order.id]).await?;
        }
        Ok(Outcome::done(Stock::Released))
    }
}

/// Takes commands, and answers them where they say.
impl Handler for Inventory {
    type Message = Order;
    type Reply = Stock;

    async fn handle(&self, cx: Context<'_>, order: Order) -> Result<Outcome<Stock>, HandlerError> {
        let outcome = match cx.key().is_undo() {
            true => self.release(&cx, &order).await?,
            false => self.reserve(&cx, &order).await?,
        };
        self.replier.reply(&cx, &outcome).await?;
        Ok(outcome)
    }
}
