//! Billing: charges an order at a gateway that fails, declines and loses answers, and refunds it.
//!
//! The gateway is outside the database, so both run under a lease, and tell the barrier before the
//! first effect and in the transaction that ends the claim.

use std::time::Duration;

use oncebox_inbox::{Answer, Context, EffectError, HandlerError, LeasedContext, LeasedHandler, Outcome};
use oncebox_saga::{Action, Barrier, Compensation, InvalidBarrier, Replier};
use serde::{Deserialize, Serialize};

use super::Order;
use crate::cashier::Client;

/// The service's own tables.
pub const SCHEMA: &str = include_str!("billing/schema.sql");

/// Who consumes: the name under which keys are remembered.
pub const SCOPE: &str = "billing-service:payments";

/// How long the gateway may take to answer.
const ANSWER_MAX: Duration = Duration::from_millis(500);
/// How soon to ask again whether a charge is settled that another run has begun.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// The answers of billing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Payment {
    /// The money is here.
    Charged,
    /// It was here before.
    ChargedBefore,
    /// The card was declined.
    Declined,
    /// The order was given up before this came: never charge.
    TooLate,
    /// The money is back.
    Refunded,
    /// There was none to give back, and there will be none.
    NothingToRefund,
}

/// Charges and refunds.
#[derive(Clone, Debug)]
pub struct Billing {
    barrier: Barrier,
    replier: Replier,
    gateway: Client,
}

impl Billing {
    /// The service, which answers commands with this.
    ///
    /// # Errors
    /// Never: the barrier's name is a good one.
    pub fn new(replier: Replier, gateway: Client) -> Result<Self, InvalidBarrier> {
        Ok(Self { barrier: Barrier::new("billing-service:charge")?, replier, gateway })
    }

    /// This service for one order: its barrier has the order's key, with messages of any key.
    pub(super) fn of(&self, order: &Order) -> Result<Self, HandlerError> {
        let barrier = self.barrier.for_action(order.key()?.step("charge")?);
        Ok(Self { barrier, ..self.clone() })
    }

    pub(super) async fn charge(
        &self,
        cx: &LeasedContext<'_>,
        order: &Order,
    ) -> Result<Outcome<Payment>, HandlerError> {
        match self.barrier.leased_action(cx).await? {
            Action::Act => {}
            Action::Acted => return Ok(Outcome::done(Payment::ChargedBefore)),
            Action::Refused => return Ok(Outcome::reject(Payment::TooLate)),
        }
        // The gateway knows keys, so a call with an unknown result is repeated with the same key.
        let charged = cx
            .effect("gateway")
            .timeout(ANSWER_MAX)
            .call(|key| async move { self.gateway.charge(&key, order.cents).await })
            .provider_idempotent()
            .await;
        match charged {
            Ok(_) => Ok(Outcome::done(Payment::Charged)),
            Err(EffectError::Rejected { .. }) => Ok(Outcome::reject(Payment::Declined)),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) async fn refund(
        &self,
        cx: &LeasedContext<'_>,
        order: &Order,
    ) -> Result<Outcome<Payment>, HandlerError> {
        match self.barrier.leased_compensation(cx).await? {
            Compensation::Undo => {}
            Compensation::Nothing => return Ok(Outcome::done(Payment::NothingToRefund)),
            Compensation::Wait => return Ok(Outcome::snooze(LOOK_AGAIN, "the charge is under way")),
        }
        cx.effect("gateway")
            .timeout(ANSWER_MAX)
            .call(|key| async move { self.gateway.refund(&key, order.cents).await })
            .provider_idempotent()
            .await?;
        Ok(Outcome::done(Payment::Refunded))
    }

    /// Tells the books and the barrier how it ended, in the transaction that ends the claim.
    pub(super) async fn book(
        &self,
        cx: &Context<'_>,
        order: &Order,
        payment: Payment,
    ) -> Result<(), HandlerError> {
        let cents = match payment {
            Payment::Charged => {
                self.barrier.end_leased_action(cx, true).await?;
                order.cents
            }
            Payment::Declined => return self.barrier.end_leased_action(cx, false).await,
            Payment::Refunded => {
                self.barrier.end_leased_compensation(cx).await?;
                -order.cents
            }
            Payment::ChargedBefore | Payment::TooLate | Payment::NothingToRefund => return Ok(()),
        };
        cx.transaction().execute(include_str!("billing/book.sql"), &[&order.id, &cents]).await?;
        Ok(())
    }
}

/// Takes commands, and answers them where they say.
impl LeasedHandler for Billing {
    type Message = Order;
    type Reply = Payment;

    async fn handle(&self, cx: &LeasedContext<'_>, order: Order) -> Result<Outcome<Payment>, HandlerError> {
        match cx.key().is_undo() {
            true => self.refund(cx, &order).await,
            false => self.charge(cx, &order).await,
        }
    }

    async fn finish(&self, cx: Context<'_>, answer: &Answer<Payment>) -> Result<(), HandlerError> {
        let (outcome, payment) = match *answer {
            Answer::Done(payment) => (Outcome::done(payment), payment),
            Answer::Rejected(payment) => (Outcome::reject(payment), payment),
            _ => return Ok(()),
        };
        self.book(&cx, &serde_json::from_slice(cx.message().payload())?, payment).await?;
        self.replier.reply(&cx, &outcome).await?;
        Ok(())
    }
}
