//! A payment gateway: the HTTP server of another company, which often fails.
//!
//! `POST /charges` and `POST /refunds` take an `Idempotency-Key`: the same key means the same
//! charge. `POST /payouts` does not: each request is a payout, and `GET /payouts/{reference}` finds
//! the payout with a reference. Of the requests that move money, one in five is refused with 500
//! before anything is done, one in five loses its connection instead of an answer, after everything
//! is done, and one in five is answered late.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{Path, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

/// How late a late answer is.
pub const LATE: Duration = Duration::from_secs(3);
/// Charges above this amount are declined.
pub const CENTS_MAX: i64 = 1_000_000;

/// A request to charge or to pay out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Payment {
    /// The client's name for this payment.
    pub reference: String,
    /// How much.
    pub cents: i64,
}

/// The answers of the gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The gateway's number of the charge or payout.
    pub number: u64,
}

/// The gateway's work for one key or reference.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// Requests that reached it.
    pub requests: u64,
    /// The charges, refunds or payouts made.
    pub made: Vec<u64>,
    /// How much each of them was.
    pub cents: i64,
}

/// The gateway's books.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Books {
    /// The payments by idempotency key.
    pub charges: BTreeMap<String, Line>,
    /// The refunds by idempotency key.
    pub refunds: BTreeMap<String, Line>,
    /// The payments by reference.
    pub payouts: BTreeMap<String, Line>,
    /// All requests that ask for a payment or a refund.
    pub requests: u64,
    /// How many of these requests were refused before anything was done.
    pub refused: u64,
    /// How many of these requests got no answer after everything was done.
    pub lost: u64,
    /// How many of these requests were answered late.
    pub late: u64,
}

/// The gateway, which forgets everything when it ends.
#[derive(Debug, Default)]
pub struct Gateway(Mutex<Books>);

/// A fault of a request; the kinds take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    None,
    RefusedBefore,
    LostAfter,
    LateAfter,
}

/// The gateway's routes; `GET /books` is for the audit.
pub fn router(gateway: Arc<Gateway>) -> Router {
    Router::new()
        .route("/charges", post(charge))
        .route("/refunds", post(refund))
        .route("/payouts", post(pay_out))
        .route("/payouts/{reference}", get(find_payout))
        .route("/books", get(books))
        .with_state(gateway)
}

impl Gateway {
    /// The gateway's books. Requests wait while the guard is held.
    pub fn books(&self) -> MutexGuard<'_, Books> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Books {
    fn trouble(&mut self) -> Trouble {
        self.requests += 1;
        match self.requests % 5 {
            1 => {
                self.refused += 1;
                Trouble::RefusedBefore
            }
            2 => {
                self.lost += 1;
                Trouble::LostAfter
            }
            3 => {
                self.late += 1;
                Trouble::LateAfter
            }
            _ => Trouble::None,
        }
    }

    fn next_number(&self) -> u64 {
        let lines = self.charges.values().chain(self.refunds.values()).chain(self.payouts.values());
        lines.map(|line| line.made.len() as u64).sum::<u64>() + 1
    }
}

async fn charge(State(gateway): State<Arc<Gateway>>, headers: HeaderMap, body: Bytes) -> Response {
    once(&gateway, &headers, &body, |books| &mut books.charges).await
}

async fn refund(State(gateway): State<Arc<Gateway>>, headers: HeaderMap, body: Bytes) -> Response {
    once(&gateway, &headers, &body, |books| &mut books.refunds).await
}

/// Moves money once for a key.
async fn once(
    gateway: &Gateway,
    headers: &HeaderMap,
    body: &[u8],
    page: impl FnOnce(&mut Books) -> &mut BTreeMap<String, Line>,
) -> Response {
    let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok());
    let (Some(key), Ok(payment)) = (key, serde_json::from_slice::<Payment>(body)) else {
        return (StatusCode::BAD_REQUEST, "the request needs an Idempotency-Key and a payment")
            .into_response();
    };
    if payment.cents > CENTS_MAX {
        return (StatusCode::PAYMENT_REQUIRED, "card declined").into_response();
    }
    let (trouble, receipt) = {
        let mut books = gateway.books();
        let (trouble, number) = (books.trouble(), books.next_number());
        let line = page(&mut books).entry(key.to_owned()).or_default();
        line.requests += 1;
        if line.made.is_empty() && trouble != Trouble::RefusedBefore {
            line.made.push(number);
            line.cents = payment.cents;
        }
        (trouble, Receipt { number: line.made.first().copied().unwrap_or(0) })
    };
    answer(trouble, &receipt).await
}

async fn pay_out(State(gateway): State<Arc<Gateway>>, body: Bytes) -> Response {
    let Ok(payment) = serde_json::from_slice::<Payment>(&body) else {
        return (StatusCode::BAD_REQUEST, "the body is not a payment").into_response();
    };
    let (trouble, receipt) = {
        let mut books = gateway.books();
        let (trouble, number) = (books.trouble(), books.next_number());
        let line = books.payouts.entry(payment.reference).or_default();
        line.requests += 1;
        if trouble != Trouble::RefusedBefore {
            line.made.push(number);
            line.cents = payment.cents;
        }
        (trouble, Receipt { number })
    };
    answer(trouble, &receipt).await
}

async fn find_payout(State(gateway): State<Arc<Gateway>>, Path(reference): Path<String>) -> Response {
    let number = gateway.books().payouts.get(&reference).and_then(|line| line.made.first().copied());
    match number {
        Some(number) => json(&Receipt { number }),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

async fn books(State(gateway): State<Arc<Gateway>>) -> Response {
    let books = gateway.books().clone();
    json(&books)
}

async fn answer(trouble: Trouble, receipt: &Receipt) -> Response {
    match trouble {
        Trouble::None => json(receipt),
        Trouble::RefusedBefore => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        Trouble::LateAfter => {
            sleep(LATE).await;
            json(receipt)
        }
        // A body that fails closes the connection, so the client never gets a whole answer.
        Trouble::LostAfter => {
            let failing = futures_util::stream::once(async { Err::<Bytes, _>(io::Error::other("lost")) });
            Response::new(Body::from_stream(failing))
        }
    }
}

fn json(answer: &impl Serialize) -> Response {
    match serde_json::to_vec(answer) {
        Ok(body) => body.into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
