//! Checks the values that a builder was given, and reports all mistakes at once.

use std::{sync::Arc, time::Duration};

use axum::http::{HeaderName, HeaderValue, header};
use oncebox_claims::{InvalidSettings, database::Database};
use oncebox_schema::Driver;

use super::Builder;
use crate::{
    IdempotencyLayer,
    settings::{Settings, Sizes, Tenant, Times},
    shared::Shared,
    stored_response,
};

const SCOPE_LENGTH_MAX: usize = 100;
/// The headers that identify users, unless the builder names others.
const CREDENTIALS: [&str; 2] = ["authorization", "cookie"];
const ROUTE_LENGTH_MAX: usize = 130;
const REQUEST_BODY_MAX: usize = 64 << 20;
const REQUESTS_MAX: usize = 1 << 20;
const BUFFERED_MAX: usize = 1 << 31;
const HOUR: Duration = Duration::from_secs(3600);

impl<D: Driver> Builder<D> {
    /// Builds the layer, if every value is valid.
    ///
    /// # Errors
    /// All mistakes at once.
    pub fn build(self) -> Result<IdempotencyLayer<D>, InvalidSettings> {
        let mut mistakes = self.mistakes();
        let mut name = |text: &str, what: &str| {
            let name = HeaderName::from_bytes(text.as_bytes()).ok();
            if name.is_none() {
                mistakes.push(format!("{what} {text:?} is not the name of a header"));
            }
            name
        };
        let header = name(&self.header, "key_header");
        let kept: Vec<_> = self.kept_headers.iter().filter_map(|text| name(text, "kept header")).collect();
        let credentials = match (&self.credentials, &self.tenant) {
            (Some(names), _) => names.clone(),
            (None, Some(Tenant::Single)) => CREDENTIALS.map(str::to_owned).into(),
            (None, _) => Vec::new(),
        };
        let credentials: Vec<_> =
            credentials.iter().filter_map(|text| name(text, "header with credentials")).collect();
        let of_the_connection =
            [header::CONNECTION, header::CONTENT_LENGTH, header::DATE, header::TRANSFER_ENCODING];
        for name in kept.iter().filter(|name| of_the_connection.contains(name)) {
            mistakes.push(format!("kept header {name} belongs to one connection, not to the response"));
        }
        let link = self.documentation.as_ref().map(|uri| {
            let is_uri =
                uri.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'<' | b'>' | b'"'));
            HeaderValue::try_from(format!("<{uri}>; rel=\"describedby\"")).ok().filter(|_| is_uri)
        });
        if matches!(link, Some(None)) {
            mistakes.push("documentation is not a URI".to_owned());
        }
        let (Some(tenant), Some(header), true) = (self.tenant, header, mistakes.is_empty()) else {
            return Err(InvalidSettings(mistakes));
        };
        let database = Arc::new(Database::new(self.driver, &self.schema, &self.limits, self.is_pooled));
        let leased =
            self.leases.zip(self.times.lease).map(|(leases, lease)| leases(Arc::clone(&database), lease));
        let settings = Settings {
            schema: self.schema,
            scope: self.scope,
            tenant,
            credentials,
            fingerprint: self.fingerprint,
            route: self.route,
            header,
            passes_without_key: self.passes_without_key,
            not_stored: self.not_stored,
            kept_headers: kept,
            sizes: self.sizes,
            times: self.times,
            documentation: link.flatten(),
            limits: self.limits,
        };
        Ok(IdempotencyLayer::new(Shared::new(database, settings, leased)))
    }

    fn mistakes(&self) -> Vec<String> {
        let mut mistakes = self.limits.mistakes();
        let named = |text: &str, max| (1..=max).contains(&text.len()) && !text.chars().any(char::is_control);
        if !named(&self.scope, SCOPE_LENGTH_MAX) {
            mistakes.push(format!("scope is not 1 to {SCOPE_LENGTH_MAX} bytes without control characters"));
        }
        if self.route.as_ref().is_some_and(|route| !named(route, ROUTE_LENGTH_MAX)) {
            mistakes.push(format!("route is not 1 to {ROUTE_LENGTH_MAX} bytes without control characters"));
        }
        if let Some(status) = self.not_stored.iter().find(|status| !(400..=499).contains(*status)) {
            mistakes.push(format!("not_stored has {status}, which is not 400 to 499"));
        }
        if self.tenant.is_none() {
            mistakes.push("neither single_tenant() nor tenant(..) is set".to_owned());
        }
        let Sizes { request_body_max, response_body_max, requests_max, buffered_max } = self.sizes;
        for (name, value, max) in [
            ("request_body_max", request_body_max, REQUEST_BODY_MAX),
            ("response_body_max", response_body_max, stored_response::BODY_MAX),
            ("requests_max", requests_max, REQUESTS_MAX),
            ("buffered_max", buffered_max, BUFFERED_MAX),
        ] {
            if !(1..=max).contains(&value) {
                mistakes.push(format!("{name} is not 1 to {max}"));
            }
        }
        if buffered_max < request_body_max {
            mistakes.push(
                "buffered_max is less than request_body_max: a request of that size could never be read"
                    .to_owned(),
            );
        }
        let Times { in_flight_wait, retry_after, request_body_timeout, lease } = self.times;
        for (name, value, min) in [
            ("in_flight_wait", in_flight_wait, Duration::from_millis(1)),
            ("retry_after", retry_after, Duration::from_secs(1)),
            ("request_body_timeout", request_body_timeout, Duration::from_millis(1)),
            ("leased", lease.unwrap_or(HOUR), Duration::from_millis(100)),
        ] {
            if !(min..=HOUR).contains(&value) {
                mistakes.push(format!("{name} is not {min:?} to one hour"));
            }
        }
        mistakes
    }
}

#[cfg(test)]
mod tests {
    use deadpool_postgres::{Manager, Pool};
    use tokio_postgres::NoTls;

    use super::*;

    fn builder() -> Builder {
        let manager = Manager::new("host=127.0.0.1".parse().unwrap(), NoTls);
        Builder::new(Pool::builder(manager).build().unwrap().into())
    }

    #[test]
    fn all_mistakes_are_reported_at_once() {
        let built = builder()
            .key_header("no name")
            .kept_headers(["date", "a b"])
            .response_body_max(stored_response::BODY_MAX + 1)
            .request_body_max(0)
            .retry_after(Duration::ZERO)
            .handler_timeout(Duration::ZERO)
            .documentation("two words")
            .route("")
            .not_stored([201])
            .build();
        let text = built.unwrap_err().to_string();
        for part in [
            "scope",
            "route",
            "not_stored",
            "single_tenant",
            "key_header",
            "kept header date",
            "\"a b\"",
            "response_body_max",
            "request_body_max",
            "retry_after",
            "handler_timeout",
            "documentation",
        ] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
    }

    /// There is no tenant by default.
    #[test]
    fn the_defaults_are_valid_except_for_scope_and_tenant() {
        assert!(builder().scope("shop").single_tenant().build().is_ok());
        assert!(
            builder().scope("shop").tenant(|_| None).documentation("https://example.org/a#b").build().is_ok()
        );
        assert!(builder().scope("shop").build().is_err());
        assert!(builder().single_tenant().build().is_err());
    }
}
