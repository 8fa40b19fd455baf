//! The order service over HTTP: `POST /orders` places an order once, however often the client
//! repeats the request.

use anyhow::Result;
use axum::{
    Json, Router,
    extract::State,
    http::{HeaderName, StatusCode, header::LOCATION},
    routing::post,
};
use deadpool_postgres::Pool;
use oncebox_http::{Claim, IdempotencyLayer};
use oncebox_outbox::Outbox;
use serde::Deserialize;
use tracing::error;

use crate::order::{OrderPlaced, Request, place_order_as};

/// A client's request.
#[derive(Clone, Debug, Deserialize)]
pub struct NewOrder {
    /// Who orders.
    pub customer: i32,
    /// The price.
    pub cents: i64,
}

#[derive(Clone)]
struct Shop {
    outbox: Outbox,
    /// The subject of the messages to the payment service.
    subject: String,
}

/// The service, and its layer. Drain the layer before the program ends.
///
/// # Errors
/// The layer is set up with values that cannot work.
pub fn router(pool: Pool, subject: &str) -> Result<(Router, IdempotencyLayer)> {
    let layer = IdempotencyLayer::builder(pool).scope("order-service").single_tenant().build()?;
    let shop = Shop { outbox: Outbox::default(), subject: subject.to_owned() };
    let router = Router::new().route("/orders", post(place)).route_layer(layer.clone()).with_state(shop);
    Ok((router, layer))
}

/// The order, the message that asks for its payment and this response are committed together. A
/// repeated request gets the same response, and this function does not run again.
async fn place(
    State(shop): State<Shop>,
    claim: Claim,
    Json(order): Json<NewOrder>,
) -> Result<(StatusCode, [(HeaderName, String); 1], Json<OrderPlaced>), StatusCode> {
    if order.cents <= 0 {
        // This refusal is stored too, so that a repeated request gets it again.
        return Err(StatusCode::UNPROCESSABLE_ENTITY);
    }
    let request = Request { key: claim.key().to_string(), customer: order.customer, cents: order.cents };
    let placed =
        place_order_as(claim.transaction(), &shop.outbox, &shop.subject, claim.key(), &request).await;
    let placed = placed.map_err(|error| {
        error!("place an order: {error:#}");
        // The transaction is rolled back, and the client may try again with the same key.
        StatusCode::INTERNAL_SERVER_ERROR
    })?;
    Ok((StatusCode::CREATED, [(LOCATION, format!("/orders/{}", placed.order))], Json(placed)))
}
