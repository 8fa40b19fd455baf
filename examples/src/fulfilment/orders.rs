//! The orders: taken over HTTP, and each led through the three services by a saga.

use std::time::Duration;

use anyhow::{Result, anyhow};
use axum::{Json, Router, extract::State, http::StatusCode, routing::post};
use deadpool_postgres::Pool;
use oncebox_http::{Claim, IdempotencyLayer};
use oncebox_saga::{Definition, FileMistake, Orchestrator, SagaFile, Step};
use serde::Deserialize;
use tracing::error;

use super::{Order, billing, inventory, shipping};
use crate::config::subject;

/// How long an answer may take before an operator has to look: longer than a participant tries.
const ANSWER_MAX: Duration = Duration::from_secs(3_600);

/// A client's request.
#[derive(Clone, Debug, Deserialize)]
pub struct NewOrder {
    /// The ordered item.
    pub item: String,
    /// How many of it.
    pub count: i32,
    /// The price of all.
    pub cents: i64,
    /// Where the parcel goes.
    pub city: String,
}

/// Who says how an order is led.
#[derive(Clone, Debug)]
pub enum Leading {
    /// A definition in Rust.
    Code(Definition<Order>),
    /// The file `order.toml`, which says the same.
    File(SagaFile),
}

#[derive(Clone)]
struct Shop {
    orchestrator: Orchestrator,
    leading: Leading,
}

/// Reserve, charge, ship. Until the parcel is on its way everything can be undone.
///
/// # Errors
/// The definition has a mistake.
pub fn definition() -> Result<Definition<Order>> {
    let step = |name, scope, command, compensation| {
        Step::new(name, subject(command), Order::clone)
            .scope(scope)
            .compensation(subject(compensation), Order::clone)
            .deadline(ANSWER_MAX)
    };
    let definition = Definition::builder("fulfilment", 1)
        .step(step("reserve", inventory::SCOPE, "inventory.reserve", "inventory.release"))
        .step(step("charge", billing::SCOPE, "billing.charge", "billing.refund"))
        .step(step("ship", shipping::SCOPE, "shipping.send", "shipping.recall").pivot())
        .build()?;
    Ok(definition)
}

/// The file that says the same.
///
/// # Errors
/// The file has mistakes.
pub fn file() -> Result<SagaFile> {
    let text = include_str!("order.toml").replace("subject = \"", &format!("subject = \"{}", subject("")));
    let told =
        |mistakes: Vec<FileMistake>| mistakes.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    SagaFile::parse(&text).map_err(|mistakes| anyhow!("order.toml: {}", told(mistakes)))
}

/// The orchestrator of these sagas.
///
/// # Errors
/// It is set up with values that cannot work.
pub fn orchestrator(leading: &Leading) -> Result<Orchestrator> {
    let builder = Orchestrator::builder(subject("fulfilment.replies").parse()?);
    Ok(match leading {
        Leading::Code(definition) => builder.definition(definition),
        Leading::File(file) => builder.file(file),
    }
    .build()?)
}

/// The HTTP service, and its layer: drain that one at the end.
///
/// # Errors
/// The layer is set up with values that cannot work.
pub fn router(
    pool: Pool,
    orchestrator: Orchestrator,
    leading: Leading,
) -> Result<(Router, IdempotencyLayer)> {
    let layer = IdempotencyLayer::builder(pool).scope("order-service").single_tenant().build()?;
    let shop = Shop { orchestrator, leading };
    let router = Router::new().route("/orders", post(take)).route_layer(layer.clone()).with_state(shop);
    Ok((router, layer))
}

impl Shop {
    async fn start(&self, claim: &Claim, order: &Order) -> Result<()> {
        match &self.leading {
            Leading::Code(definition) => {
                self.orchestrator.start(claim.transaction(), definition, &order.id, order).await?;
            }
            Leading::File(file) => {
                let (name, data) = (file.graph().name(), serde_json::to_string(order)?);
                let sql = include_str!("start.sql");
                claim.transaction().query_one(sql, &[&name, &order.id, &data]).await?;
            }
        }
        Ok(())
    }
}

/// The saga, its first command and this response are committed together. A repeated request gets
/// this very response.
async fn take(
    State(shop): State<Shop>,
    claim: Claim,
    Json(NewOrder { item, count, cents, city }): Json<NewOrder>,
) -> Result<(StatusCode, Json<Order>), StatusCode> {
    if count <= 0 || cents <= 0 {
        return Err(StatusCode::UNPROCESSABLE_ENTITY);
    }
    let order = Order { id: claim.key().to_string(), item, count, cents, city };
    match shop.start(&claim, &order).await {
        Ok(()) => Ok((StatusCode::ACCEPTED, Json(order))),
        Err(problem) => {
            error!("take an order: {problem:#}");
            // Rolled back, and free to be tried again with the same key.
            Err(StatusCode::INTERNAL_SERVER_ERROR)
        }
    }
}
