//! Shipping: sends a parcel, where it can, and calls it back.

use oncebox_inbox::{Context, Handler, HandlerError, Outcome};
use oncebox_saga::{Action, Barrier, Compensation, InvalidBarrier, Replier};
use serde::{Deserialize, Serialize};

use super::Order;

/// The service's own tables.
pub const SCHEMA: &str = include_str!("shipping/schema.sql");

/// Who consumes: the name under which keys are remembered.
pub const SCOPE: &str = "shipping-service:parcels";

/// No parcel reaches this city.
pub const UNREACHABLE: &str = "Atlantis";

/// The answers of shipping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Parcel {
    /// It is on its way.
    Sent,
    /// No parcel reaches this city.
    Unreachable,
    /// The order was given up before this came: never send.
    TooLate,
    /// No parcel is on its way, and none will be.
    Recalled,
}

/// Sends and recalls.
#[derive(Clone, Debug)]
pub struct Shipping {
    barrier: Barrier,
    replier: Replier,
}

impl Shipping {
    /// The service, which answers commands with this.
    ///
    /// # Errors
    /// Never: the barrier's name is a good one.
    pub fn new(replier: Replier) -> Result<Self, InvalidBarrier> {
        Ok(Self { barrier: Barrier::new("shipping-service:ship")?, replier })
    }

    /// This service for one order: its barrier has the order's key, with messages of any key.
    pub(super) fn of(&self, order: &Order) -> Result<Self, HandlerError> {
        let barrier = self.barrier.for_action(order.key()?.step("ship")?);
        Ok(Self { barrier, replier: self.replier.clone() })
    }

    pub(super) async fn send(
        &self,
        cx: &Context<'_>,
        order: &Order,
    ) -> Result<Outcome<Parcel>, HandlerError> {
        match self.barrier.action(cx).await? {
            Action::Act if order.city == UNREACHABLE => {
                self.barrier.had_no_effect(cx).await?;
                Ok(Outcome::reject(Parcel::Unreachable))
            }
            Action::Act => {
                let Order { id, item, count, .. } = order;
                let sql = include_str!("shipping/send.sql");
                cx.transaction().execute(sql, &[id, item, count]).await?;
                Ok(Outcome::done(Parcel::Sent))
            }
            Action::Acted => Ok(Outcome::done(Parcel::Sent)),
            Action::Refused => Ok(Outcome::reject(Parcel::TooLate)),
        }
    }

    pub(super) async fn recall(
        &self,
        cx: &Context<'_>,
        order: &Order,
    ) -> Result<Outcome<Parcel>, HandlerError> {
        if self.barrier.compensation(cx).await? == Compensation::Undo {
            cx.transaction().execute(include_str!("shipping/recall.sql"), &[&order.id]).await?;
        }
        Ok(Outcome::done(Parcel::Recalled))
    }
}

/// Takes commands, and answers them where they say.
impl Handler for Shipping {
    type Message = Order;
    type Reply = Parcel;

    async fn handle(&self, cx: Context<'_>, order: Order) -> Result<Outcome<Parcel>, HandlerError> {
        let outcome = match cx.key().is_undo() {
            true => self.recall(&cx, &order).await?,
            false => self.send(&cx, &order).await?,
        };
        self.replier.reply(&cx, &outcome).await?;
        Ok(outcome)
    }
}
