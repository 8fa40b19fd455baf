//! The answers of the layer itself: `application/problem+json` (RFC 9457). Nothing internal goes
//! into it.

use std::time::Duration;

use axum::{
    body::Body,
    http::{
        HeaderValue, Response, StatusCode,
        header::{CONTENT_TYPE, LINK, RETRY_AFTER},
    },
};
use serde_json::json;

const CONTENT: HeaderValue = HeaderValue::from_static("application/problem+json");

/// See the table in the module's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    KeyMissing,
    KeyMalformed,
    TenantMissing,
    MethodUnknown,
    KeyReused,
    InFlight,
    BodyTooLarge(usize),
    BodyUnreadable,
    BodyTooSlow,
    /// The first response had this status, if it is known.
    NotKept(Option<StatusCode>),
    Overloaded,
    Draining,
    Unavailable,
    HandlerTooSlow,
    HandlerFailed,
    SetUpWrongly,
}

impl Problem {
    fn status(self) -> StatusCode {
        match self {
            Self::KeyMissing | Self::KeyMalformed | Self::BodyUnreadable => StatusCode::BAD_REQUEST,
            Self::TenantMissing => StatusCode::FORBIDDEN,
            Self::MethodUnknown => StatusCode::NOT_IMPLEMENTED,
            Self::KeyReused => StatusCode::UNPROCESSABLE_ENTITY,
            Self::InFlight => StatusCode::CONFLICT,
            Self::BodyTooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BodyTooSlow => StatusCode::REQUEST_TIMEOUT,
            Self::NotKept(_) => StatusCode::GONE,
            Self::Overloaded | Self::Draining | Self::Unavailable | Self::HandlerTooSlow => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::HandlerFailed | Self::SetUpWrongly => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn name_and_title(self) -> (&'static str, &'static str) {
        match self {
            Self::KeyMissing => ("key-missing", "This request needs an idempotency key"),
            Self::KeyMalformed => ("key-malformed", "The idempotency key cannot be read"),
            Self::TenantMissing => ("tenant-missing", "The request belongs to nobody"),
            Self::MethodUnknown => ("method-unknown", "The method is not known here"),
            Self::KeyReused => ("key-reused", "The idempotency key was used for another request"),
            Self::InFlight => ("in-flight", "A request with this idempotency key is being worked on"),
            Self::BodyTooLarge(_) => ("body-too-large", "The request's body is too large"),
            Self::BodyUnreadable => ("body-unreadable", "The request's body ended too early"),
            Self::BodyTooSlow => ("body-too-slow", "The request's body took too long to arrive"),
            Self::NotKept(Some(_)) => ("response-not-kept", "The request was done, but its response is gone"),
            Self::NotKept(None) => ("response-not-kept", "A part of the request may be done"),
            Self::Overloaded => ("overloaded", "Too many requests at once"),
            Self::Draining => ("draining", "The server is shutting down"),
            Self::Unavailable => ("unavailable", "The database is not available"),
            Self::HandlerTooSlow => ("too-slow", "The request took too long"),
            Self::HandlerFailed => ("failed", "The request failed"),
            Self::SetUpWrongly => ("set-up-wrongly", "The server is set up wrongly"),
        }
    }

    fn detail(self) -> String {
        let same = "Send it again with the same key.";
        match self {
            Self::KeyMissing => "Send a new key of high entropy, such as a UUID, with every new request, and the same \
                                 key with every repetition of it."
                .to_owned(),
            Self::KeyMalformed => "The key is one string of 1 to 128 visible ASCII characters without blanks, in double \
                                   quotes or, without any of the characters \" \\ , ; in it, bare; given once."
                .to_owned(),
            Self::TenantMissing => "The server could not tell for whom the request is made.".to_owned(),
            Self::KeyReused => "The first request with this key had another path, query, content type or body, or other \
                                credentials. If this one repeats it, send what you sent first: with a new key it would \
                                be done again. Use a new key only for a new request."
                .to_owned(),
            Self::InFlight => format!("Its outcome is not known yet. {same}"),
            Self::BodyTooLarge(limit) => format!("The limit is {limit} bytes. Nothing was done."),
            Self::BodyUnreadable | Self::BodyTooSlow => format!("Nothing was done. {same}"),
            Self::NotKept(Some(status)) => format!(
                "The first request with this key ended with status {}. Its body was too large to keep. The request was \
                 not done a second time, and need not be.",
                status.as_u16()
            ),
            Self::NotKept(None) => "The first request with this key failed after a part of it was committed. The request \
                                    was not done a second time."
                .to_owned(),
            Self::Overloaded | Self::Draining => format!("It has no outcome. {same}"),
            Self::Unavailable => format!("Whether the request was done is not known. {same}"),
            Self::HandlerTooSlow | Self::HandlerFailed => format!("It has no outcome. {same}"),
            Self::SetUpWrongly | Self::MethodUnknown => "Nothing was done.".to_owned(),
        }
    }

    fn is_for_now(self) -> bool {
        matches!(
            self,
            Self::InFlight | Self::Overloaded | Self::Draining | Self::Unavailable | Self::HandlerTooSlow
        )
    }

    /// The response, with the pause that is asked for before another attempt, and a link to the
    /// documentation.
    pub(crate) fn response(
        self,
        retry_after: Duration,
        documentation: Option<&HeaderValue>,
    ) -> Response<Body> {
        let (name, title) = self.name_and_title();
        let mut problem = json!({
            "type": format!("urn:oncebox:problem:{name}"),
            "title": title,
            "status": self.status().as_u16(),
            "detail": self.detail(),
        });
        if let Self::NotKept(Some(first)) = self {
            problem["first_status"] = first.as_u16().into();
        }
        let mut response = Response::new(Body::from(problem.to_string()));
        *response.status_mut() = self.status();
        response.headers_mut().insert(CONTENT_TYPE, CONTENT);
        if self.is_for_now() {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(retry_after.as_secs().max(1)));
        }
        if let Some(link) = documentation {
            response.headers_mut().append(LINK, link.clone());
        }
        response
    }
}
