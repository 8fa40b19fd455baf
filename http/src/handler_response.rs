//! The response of a handler: its body, and how the handler ended by it.

use axum::{
    BoxError,
    body::{Body, Bytes},
    http::{HeaderMap, HeaderName, Request, Response, StatusCode, response},
    response::IntoResponse,
};
use futures_util::future::poll_fn;
use oncebox_claims::life::Run;
use tower_service::Service;

use crate::{bodies::with_trailers, stored_response::StoredResponse};

/// Statuses of the 4xx that are not stored, unless the layer is told others: the next attempt may
/// get another answer.
pub(crate) const NOT_STORED: [u16; 6] = [401, 403, 408, 409, 425, 429];

/// How a handler ended, by the status of its response.
pub(crate) fn run_of(status: StatusCode, not_stored: &[u16]) -> Run {
    match status.as_u16() {
        200..=399 => Run::Done,
        status if not_stored.contains(&status) => Run::Failed,
        400..=499 => Run::Rejected,
        _ => Run::Failed,
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
        let run = |status, not_stored: &[u16]| run_of(StatusCode::from_u16(status).unwrap(), not_stored);
        for (statuses, expected) in [
            (&[200, 201, 204, 301, 303, 304][..], Run::Done),
            (&[400, 402, 404, 410, 422], Run::Rejected),
            (&[101, 401, 403, 408, 409, 425, 429, 500, 502, 503, 599], Run::Failed),
        ] {
            for status in statuses {
                assert_eq!(run(*status, &NOT_STORED), expected, "{status}");
            }
        }
        assert_eq!((run(403, &[404]), run(404, &[404])), (Run::Rejected, Run::Failed), "it is a setting");
    }
}
