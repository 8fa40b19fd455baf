//! Answers that need no handler.

use std::sync::atomic::Ordering;

use axum::{
    body::Body,
    http::{
        HeaderName, HeaderValue, Response,
        header::{CONTENT_ENCODING, CONTENT_TYPE},
    },
};
use oncebox_claims::{Error, failure::text, identity::Identity, metrics::add};
use oncebox_schema::Driver;
use tracing::{error, info, warn};

use crate::{
    problem::Problem, shared::Shared, single_flight::CommittedResponse, stored_response::StoredResponse,
};

/// The header that says whether a response was replayed. Every response of a handler has it, also
/// the first.
pub(crate) const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

impl<D: Driver> Shared<D> {
    /// Answers a repeated request with the committed response.
    pub(crate) fn replay(&self, found: &CommittedResponse, identity: &Identity) -> Response<Body> {
        if found.fingerprint != identity.fingerprint {
            return self.refuse(Problem::KeyReused);
        }
        let Some(StoredResponse { status, headers, body }) = &found.kept else {
            return self.refuse(Problem::NotKept(None));
        };
        add(&self.counters.replayed);
        let mut response = match body {
            Some(body) => {
                let mut response = Response::new(Body::from(body.clone()));
                *response.status_mut() = *status;
                response.headers_mut().extend(headers.clone());
                response
            }
            None => {
                let mut response = self.problem(Problem::NotKept(Some(*status)));
                // These headers describe the body that was not kept; this answer has another one.
                let of_the_body = |name| [CONTENT_TYPE, CONTENT_ENCODING].contains(name);
                for (name, value) in headers.iter().filter(|(name, _)| !of_the_body(*name)) {
                    response.headers_mut().append(name, value.clone());
                }
                response
            }
        };
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
        response
    }

    /// Answers with a problem of the layer's own.
    pub(crate) fn refuse(&self, problem: Problem) -> Response<Body> {
        self.counters.refused(problem);
        self.problem(problem)
    }

    fn problem(&self, problem: Problem) -> Response<Body> {
        problem.response(self.settings.times.retry_after, self.settings.documentation.as_ref())
    }

    /// The service inside of the layer failed without a response, or a task of ours panicked.
    pub(crate) fn failed(&self, reason: &(dyn std::error::Error + 'static)) -> Response<Body> {
        let scope = &self.settings.scope;
        error!(scope, "a request is answered with 500, since its service failed: {}", text(reason));
        self.refuse(Problem::HandlerFailed)
    }

    /// One of our own statements failed. That PostgreSQL went away is logged once, and once that it
    /// is back.
    pub(crate) fn unavailable(&self, reason: &Error) -> Response<Body> {
        let scope = &self.settings.scope;
        match reason {
            Error::Unavailable(..) => {
                if !self.away.swap(true, Ordering::Relaxed) {
                    warn!(scope, "requests are refused: {}", text(reason));
                }
            }
            other => error!(scope, "requests are refused: {}", text(other)),
        }
        self.refuse(Problem::Unavailable)
    }

    pub(crate) fn available(&self) {
        if self.away.swap(false, Ordering::Relaxed) {
            info!(scope = self.settings.scope, "PostgreSQL is back");
        }
    }
}
