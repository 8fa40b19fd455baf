//! The cashier: charges a customer and pays the merchant out, through a gateway that loses answers.

use std::time::Duration;

use oncebox_inbox::{
    Answer, Context, EffectError, HandlerError, LeasedContext, LeasedHandler, Outcome, Reconciled,
};
use serde::{Deserialize, Serialize};

use crate::order::OrderPlaced;

mod client;
mod service;

pub use self::{client::Client, service::serve};

/// The service's own tables.
pub const SCHEMA: &str = include_str!("cashier/schema.sql");

/// Who consumes: the name under which keys are remembered.
pub const SCOPE: &str = "cashier-service:settle";

/// How long the gateway may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// How long after its sender is gone a request may still reach the gateway over the network.
const SETTLES_WITHIN: Duration = Duration::from_secs(4);

/// An order is settled, or never will be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settled {
    /// The order's id in the order service.
    pub order: i64,
    /// The gateway's numbers of the charge and of the payout; `None` when the card was declined.
    pub numbers: Option<(u64, u64)>,
}

/// Settles orders. Each step may find that it was done, or begun, by a process that is gone.
#[derive(Debug)]
pub struct Cashier {
    /// The gateway.
    pub gateway: Client,
}

impl LeasedHandler for Cashier {
    type Message = OrderPlaced;
    type Reply = Settled;

    async fn handle(
        &self,
        cx: &LeasedContext<'_>,
        order: OrderPlaced,
    ) -> Result<Outcome<Settled>, HandlerError> {
        let (gateway, OrderPlaced { order, cents, .. }) = (&self.gateway, order);
        if cents <= 0 {
            return Ok(Outcome::dead("an order costs something"));
        }
        // The gateway knows keys here, so a call with an unknown result is repeated with the same
        // key.
        let charged = cx
            .effect("charge")
            .timeout(ANSWER_MAX)
            .call(|key| async move { gateway.charge(&key, cents).await })
            .provider_idempotent()
            .await;
        let charged = match charged {
            Ok(receipt) => receipt.number,
            Err(EffectError::Rejected { .. }) => {
                return Ok(Outcome::reject(Settled { order, numbers: None }));
            }
            Err(error) => return Err(error.into()),
        };
        // Here it does not: a second request would be a second payout.
        let paid_out = cx
            .effect("pay-out")
            .timeout(ANSWER_MAX)
            .settles_within(SETTLES_WITHIN)
            .call(|key| async move { gateway.pay_out(&key, cents).await })
            .reconcile(|key| async move {
                Ok(gateway.find_payout(&key).await?.map_or(Reconciled::Absent, Reconciled::Happened))
            })
            .await?;
        Ok(Outcome::done(Settled { order, numbers: Some((charged, paid_out.number)) }))
    }

    async fn finish(&self, cx: Context<'_>, answer: &Answer<Settled>) -> Result<(), HandlerError> {
        let Answer::Done(Settled { order, numbers: Some((charge, payout)) }) = answer else { return Ok(()) };
        let (charge, payout) = (i64::try_from(*charge)?, i64::try_from(*payout)?);
        let settle = cx.transaction().prepare_cached(include_str!("cashier/settle.sql")).await?;
        cx.defer(&settle, &[order, &charge, &payout])?;
        Ok(())
    }
}
