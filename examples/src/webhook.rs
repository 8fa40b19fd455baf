//! A receiver of webhooks, without NATS: each delivery of GitHub and Stripe is handled once, also
//! when it is repeated.
//!
//! The sender repeats a delivery until it is answered with 2xx. So a delivery is answered only
//! after its effect is committed, and a copy is answered from the stored outcome. A delivery is
//! recognised by its id: GitHub sends it in a header, Stripe in the payload of the event.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::Result;
use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode, header::RETRY_AFTER},
    response::{IntoResponse, Response},
    routing::post,
};
use data_encoding::HEXLOWER_PERMISSIVE;
use deadpool_postgres::Pool;
use hmac::{Hmac, KeyInit, Mac};
use oncebox_inbox::{
    Context, Decode, DecodeError, Disposition, Handler, HandlerError, Inbox, KeySource, Outcome, Part,
    Received,
};
use sha2::Sha256;

/// How old a signature of Stripe may be. This limits the time in which an attacker can send a
/// recorded request again.
const SIGNATURE_AGE_MAX: Duration = Duration::from_secs(300);

/// The inbox for the deliveries of a sender, and the secret that it signs them with.
struct Sender {
    inbox: Inbox,
    secret: String,
}

/// The routes `/github` and `/stripe`, with the secrets that the two sign with.
///
/// # Errors
/// The settings of an inbox cannot work.
pub fn router(pool: Pool, github_secret: String, stripe_secret: String) -> Result<Router> {
    let inbox = |scope: &str, key: KeySource| {
        Inbox::builder(pool.clone()).scope(scope).single_tenant().key_from(key).build()
    };
    let github = inbox("webhook:github", KeySource::client_header("X-GitHub-Delivery"))?;
    let stripe = inbox("webhook:stripe", KeySource::Part(Part::json("/id")))?;
    Ok(Router::new()
        .route("/github", post(from_github))
        .with_state(Arc::new(Sender { inbox: github, secret: github_secret }))
        .merge(
            Router::new()
                .route("/stripe", post(from_stripe))
                .with_state(Arc::new(Sender { inbox: stripe, secret: stripe_secret })),
        ))
}

async fn from_github(State(sender): State<Arc<Sender>>, headers: HeaderMap, body: Bytes) -> Response {
    let signature = text(&headers, "x-hub-signature-256").strip_prefix("sha256=").unwrap_or_default();
    if !is_signed(&sender.secret, &[&body], signature) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let kind = format!("github.{}", text(&headers, "x-github-event"));
    let delivery = Received::new(kind, body).header("X-GitHub-Delivery", text(&headers, "x-github-delivery"));
    answer(&sender.inbox, &delivery).await
}

async fn from_stripe(State(sender): State<Arc<Sender>>, headers: HeaderMap, body: Bytes) -> Response {
    let signature = text(&headers, "stripe-signature");
    let parts = || signature.split(',').filter_map(|part| part.trim().split_once('='));
    let time = parts().find(|(name, _)| *name == "t").map_or("", |(_, time)| time);
    let is_genuine = parts()
        .filter(|(name, _)| *name == "v1")
        .any(|(_, signature)| is_signed(&sender.secret, &[time.as_bytes(), b".", &body], signature));
    if !is_genuine || !is_recent(time) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    answer(&sender.inbox, &Received::new("stripe.event", body)).await
}

/// Runs the handler, or answers from the stored outcome: 2xx ends the deliveries, 503 asks for
/// another.
async fn answer(inbox: &Inbox, delivery: &Received) -> Response {
    let result = inbox.run(&Record, delivery).await;
    if let Err(error) = &result {
        tracing::warn!(%error, "the delivery was not handled, the sender will repeat it");
    }
    match Disposition::of(&result, 0) {
        // A message that is given up is a dead letter: it need not be delivered again.
        Disposition::Ack | Disposition::Term => StatusCode::NO_CONTENT.into_response(),
        Disposition::Retry(after) | Disposition::Wait(after) => {
            let seconds = after.as_secs().max(1).to_string();
            (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, seconds)]).into_response()
        }
        Disposition::Behind => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// Whether this is the HMAC of these bytes, compared in constant time.
fn is_signed(secret: &str, parts: &[&[u8]], signature: &str) -> bool {
    let Ok(signature) = HEXLOWER_PERMISSIVE.decode(signature.as_bytes()) else { return false };
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("HMAC takes a key of any length");
    for part in parts {
        mac.update(part);
    }
    mac.verify_slice(&signature).is_ok()
}

fn is_recent(seconds: &str) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    seconds.parse::<u64>().is_ok_and(|time| time.abs_diff(now) <= SIGNATURE_AGE_MAX.as_secs())
}

/// An event of GitHub or Stripe. The subject says which sender it is from, and which kind of event
/// it is.
enum Event {
    Push {
        repository: String,
    },
    Paid {
        cents: i64,
    },
    /// An event of another kind, which is ignored.
    Other,
}

#[derive(serde::Deserialize)]
struct Push {
    repository: Repository,
}

#[derive(serde::Deserialize)]
struct Repository {
    full_name: String,
}

#[derive(serde::Deserialize)]
struct StripeEvent {
    r#type: String,
    data: StripeData,
}

#[derive(serde::Deserialize)]
struct StripeData {
    object: serde_json::Value,
}

impl Decode for Event {
    fn decode(received: &Received) -> Result<Self, DecodeError> {
        match received.subject() {
            "github.push" => {
                let push = Push::decode(received)?;
                Ok(Self::Push { repository: push.repository.full_name })
            }
            "stripe.event" => {
                let event = StripeEvent::decode(received)?;
                if event.r#type != "payment_intent.succeeded" {
                    return Ok(Self::Other);
                }
                let amount = event.data.object["amount"].as_i64();
                let cents = amount.ok_or_else(|| DecodeError::new("a payment without an amount"))?;
                Ok(Self::Paid { cents })
            }
            _ => Ok(Self::Other),
        }
    }
}

/// Records each event in a table.
struct Record;

impl Handler for Record {
    type Message = Event;
    type Reply = ();

    async fn handle(&self, cx: Context<'_>, event: Event) -> Result<Outcome<()>, HandlerError> {
        let (kind, what) = match event {
            Event::Push { repository } => ("push", repository),
            Event::Paid { cents } => ("paid", cents.to_string()),
            Event::Other => return Ok(Outcome::done(())),
        };
        let sql = include_str!("webhook/record.sql");
        cx.transaction().execute(sql, &[&cx.key().as_str(), &kind, &what]).await?;
        Ok(Outcome::done(()))
    }
}
