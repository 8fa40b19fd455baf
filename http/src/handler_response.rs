//! The response of a handler: its body, and its effect on the claim.

use axum::{
    BoxError,
    body::{Body, Bytes},
    http::{HeaderMap, HeaderName, Request, Response, StatusCode, response},
    response::IntoResponse,
};
use futures_util::future::poll_fn;
use oncebox_claims::stored::Status;
use tower_service::Service;

use crate::{bodies::with_trailers, stored_response::StoredResponse};

/// The effect of a response on the claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disposition {
    /// Stored with the handler's writes.
    Commit(Status),
    /// Stored without them.
    Reject,
    /// The response is not stored: the next attempt runs the handler again.
    Release,
}

/// Statuses of the 4xx that are not stored, unless the layer is told others: the next attempt may
/// get another answer.
pub(crate) const NOT_STORED: [u16; 6] = [401, 403, 408, 409, 425, 429];

pub(crate) fn disposition(status: StatusCode, keeps_writes: bool, not_stored: &[u16]) -> Disposition {
    match status.as_u16() {
        200..=399 => Disposition::Commit(Status::Completed),
        status if not_stored.contains(&status) => Disposition::Release,
        400..=499 if keeps_writes => Disposition::Commit(Status::Rejected),
        400..=499 => Disposition::Reject,
        _ => Disposition::Release,
    }
}

/// A response, with its whole body if the body is to be stored.
pub(crate) struct HandlerResponse {
    pub(crate) parts: response::Parts,
    pub(crate) body: ResponseBody,
}

pub(crate) enum ResponseBody {
    /// With the trailers after it.
    Whole(Bytes, Option<HeaderMap>),
    /// Too long to be stored, or of unknown length, or of a response that is not stored at all.
    Streamed(Body),
}

impl HandlerResponse {
    pub(crate) fn kept(&self, listed: &[HeaderName]) -> StoredResponse {
        let body = match &self.body {
            ResponseBody::Whole(body, _) => Some(body.clone()),
            ResponseBody::Streamed(_) => None,
        };
        StoredResponse::of(&self.parts, listed, body)
    }

    pub(crate) fn respond(self) -> Response<Body> {
        let body = match self.body {
            ResponseBody::Whole(body, trailers) => with_trailers(body, trailers),
            ResponseBody::Streamed(body) => body,
        };
        Response::from_parts(self.parts, body)
    }
}

/// Calls a service when it is ready.
pub(crate) async fn call<S>(mut inner: S, request: Request<Body>) -> Result<Response<Body>, BoxError>
where
    S: Service<Request<Body>>,
    S::Response: IntoResponse,
    S::Error: Into<BoxError>,
{
    poll_fn(|context| inner.poll_ready(context)).await.map_err(Into::into)?;
    Ok(inner.call(request).await.map_err(Into::into)?.into_response())
}

/// Why the handler returned no response.
pub(crate) enum HandlerFailure {
    Panicked,
    TooSlow,
    Stopped,
    Failed(BoxError),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Redirections are successes; a client's mistake is stored; a status that may be another one
    /// later is not.
    #[test]
    fn statuses_decide_what_is_stored() {
        let check = |status: u16, expected| {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(disposition(status, false, &NOT_STORED), expected, "{status}");
        };
        for status in [200, 201, 204, 301, 303, 304] {
            check(status, Disposition::Commit(Status::Completed));
        }
        for status in [400, 402, 404, 410, 422] {
            check(status, Disposition::Reject);
            let kept = disposition(StatusCode::from_u16(status).unwrap(), true, &NOT_STORED);
            assert_eq!(kept, Disposition::Commit(Status::Rejected), "{status}");
        }
        for status in [101, 401, 403, 408, 409, 425, 429, 500, 502, 503, 599] {
            check(status, Disposition::Release);
        }
        assert_eq!(disposition(StatusCode::FORBIDDEN, false, &[404]), Disposition::Reject, "it is a setting");
        assert_eq!(disposition(StatusCode::NOT_FOUND, true, &[404]), Disposition::Release);
    }
}
