//! The gateway's client: the meaning of each answer, or of its absence.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{Method, Request, StatusCode, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use oncebox_inbox::CallError;
use oncebox_outbox::Key;
use tokio::net::TcpStream;

use crate::gateway::{Payment, Receipt};

/// Speaks to one gateway, one connection per request: the client never sends a request twice by
/// itself.
#[derive(Clone, Debug)]
pub struct Client {
    address: String,
}

impl Client {
    /// The gateway at this address, `host:port`.
    #[must_use]
    pub fn new(address: impl Into<String>) -> Self {
        Self { address: address.into() }
    }

    /// Charges, once per key.
    ///
    /// # Errors
    /// The card is declined (rejected), the gateway was not reached (failed), or gave no answer
    /// (unknown).
    pub async fn charge(&self, key: &Key, cents: i64) -> Result<Receipt, CallError> {
        self.pay("/charges", key, cents).await
    }

    /// Gives money back, once per key.
    ///
    /// # Errors
    /// As for [`Client::charge`].
    pub async fn refund(&self, key: &Key, cents: i64) -> Result<Receipt, CallError> {
        self.pay("/refunds", key, cents).await
    }

    /// Pays out, once per call.
    ///
    /// # Errors
    /// The gateway was not reached (failed), or gave no answer (unknown).
    pub async fn pay_out(&self, key: &Key, cents: i64) -> Result<Receipt, CallError> {
        self.pay("/payouts", key, cents).await
    }

    /// The payout with this key as its reference, if there is one.
    ///
    /// # Errors
    /// The gateway does not tell.
    pub async fn find_payout(&self, key: &Key) -> Result<Option<Receipt>, CallError> {
        let request = Request::get(format!("/payouts/{key}"));
        match self.send(request, Bytes::new()).await? {
            (StatusCode::OK, body) => Ok(Some(serde_json::from_slice(&body)?)),
            (StatusCode::NOT_FOUND, _) => Ok(None),
            (status, _) => Err(CallError::unknown(format!("the gateway answers {status}"))),
        }
    }

    async fn pay(&self, path: &str, key: &Key, cents: i64) -> Result<Receipt, CallError> {
        let body = serde_json::to_vec(&Payment { reference: key.to_string(), cents })?;
        let request =
            Request::builder().method(Method::POST).uri(path).header("idempotency-key", key.as_str());
        match self.send(request, body.into()).await? {
            (StatusCode::OK, body) => Ok(serde_json::from_slice(&body)?),
            // The gateway documents this one: nothing was done, and nothing ever will be.
            (StatusCode::PAYMENT_REQUIRED, _) => Err(CallError::rejected("card declined")),
            // A 500 says nothing: it may come from before, from after, or from a proxy on the way.
            (status, _) => Err(CallError::unknown(format!("the gateway answers {status}"))),
        }
    }

    async fn send(
        &self,
        request: hyper::http::request::Builder,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), CallError> {
        let request = request.header(header::HOST, &self.address).header(header::CONNECTION, "close");
        let request = request.body(Full::new(body))?;
        // Up to here nothing has been sent: a gateway that cannot be reached has not done anything.
        let stream = TcpStream::connect(&self.address).await.map_err(CallError::failed)?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(CallError::failed)?;
        let exchange = async move {
            let response = sender.send_request(request).await?;
            let status = response.status();
            let body = response.into_body().collect().await?.to_bytes();
            Ok::<_, CallError>((status, body))
        };
        // The connection does the sending and receiving; it ends with the exchange.
        let (exchanged, _) = tokio::join!(exchange, connection);
        exchanged
    }
}
