//! The span that a handler runs in. It belongs to the trace that the message was enqueued in.

use oncebox_claims::{HandlerError, handler_call::CallEnd};
use tracing::{Span, field::Empty, info_span};

use crate::{Outcome, Received};

/// The span `handle`, a child of the span that the message's `traceparent` names.
pub(crate) fn span(scope: &str, key: &str, received: &Received) -> Span {
    let span = info_span!(
        "handle",
        otel.kind = "consumer",
        otel.status_code = Empty,
        "error.type" = Empty,
        messaging.system = "nats",
        messaging.operation.name = "process",
        messaging.operation.r#type = "process",
        messaging.consumer.group.name = scope,
        messaging.destination.name = received.subject(),
        messaging.message.id = key,
        oncebox.scope = scope,
        oncebox.delivery = received.delivery_count(),
    );
    follow(&span, received);
    span
}

/// The span `handle_set`, linked with the spans that the messages' `traceparent`s name: it cannot
/// be a child of all.
pub(crate) fn set_span(scope: &str, received: &[&Received]) -> Span {
    let span = info_span!(
        "handle_set",
        otel.kind = "consumer",
        otel.status_code = Empty,
        "error.type" = Empty,
        messaging.system = "nats",
        messaging.operation.name = "process",
        messaging.operation.r#type = "process",
        messaging.consumer.group.name = scope,
        messaging.batch.message_count = received.len(),
        oncebox.scope = scope,
    );
    link(&span, received);
    span
}

/// Notes that the handler left no effect, and why.
pub(crate) fn failed(span: &Span, cause: &str) {
    span.record("otel.status_code", "ERROR");
    span.record("error.type", cause);
}

/// Why a handler left no effect; `None` if it did, or if it snoozed the message.
pub(crate) fn cause<R>(ended: &CallEnd<Result<Outcome<R>, HandlerError>>) -> Option<&'static str> {
    match ended {
        CallEnd::Returned(Ok(Outcome::Done(_) | Outcome::Reject(_) | Outcome::Snooze { .. })) => None,
        CallEnd::Returned(Ok(Outcome::Retry(_))) => Some("retry"),
        CallEnd::Returned(Ok(Outcome::Dead(_))) => Some("dead"),
        CallEnd::Returned(Err(_)) => Some("error"),
        CallEnd::Panicked(_) => Some("panic"),
        CallEnd::TimedOut => Some("timeout"),
    }
}

#[cfg(not(feature = "opentelemetry"))]
fn follow(_: &Span, _: &Received) {}

#[cfg(not(feature = "opentelemetry"))]
fn link(_: &Span, _: &[&Received]) {}

#[cfg(feature = "opentelemetry")]
fn link(span: &Span, received: &[&Received]) {
    use tracing_opentelemetry::OpenTelemetrySpanExt as _;

    if !span.is_disabled() {
        for parent in received.iter().filter_map(|received| parent(received)) {
            span.add_link(parent);
        }
    }
}

#[cfg(feature = "opentelemetry")]
fn follow(span: &Span, received: &Received) {
    use opentelemetry::{Context, trace::TraceContextExt as _};
    use tracing_opentelemetry::OpenTelemetrySpanExt as _;

    if span.is_disabled() {
        return;
    }
    if let Some(parent) = parent(received) {
        // This fails when no OpenTelemetry layer is installed: then there is nothing to connect.
        let _ = span.set_parent(Context::new().with_remote_span_context(parent));
    }
}

/// Reads a W3C Trace Context; any other text is ignored.
#[cfg(feature = "opentelemetry")]
fn parent(received: &Received) -> Option<opentelemetry::trace::SpanContext> {
    use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId};

    let parts: Vec<&str> = received.header_value("traceparent")?.trim().split('-').collect();
    let [version, trace, span, flags, ref more @ ..] = parts[..] else { return None };
    let is_hex = |text: &str, length| {
        text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    let is_hex = is_hex(version, 2) && is_hex(trace, 32) && is_hex(span, 16) && is_hex(flags, 2);
    // Later versions may append parts; ff is not a version.
    if !is_hex || version == "ff" || (version == "00" && !more.is_empty()) {
        return None;
    }
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED;
    let state = received.header_value("tracestate").and_then(|state| state.parse().ok()).unwrap_or_default();
    let parent =
        SpanContext::new(TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?, flags, true, state);
    parent.is_valid().then_some(parent)
}

#[cfg(test)]
#[cfg(feature = "opentelemetry")]
mod tests {
    use super::*;

    #[test]
    fn what_is_a_context_and_what_is_not() {
        let with = |text: &str| parent(&Received::new("s", "").header("Traceparent", text));
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let context = with(good).unwrap();
        assert_eq!(context.trace_id().to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(context.span_id().to_string(), "00f067aa0ba902b7");
        assert!(context.is_sampled() && context.is_remote());
        assert!(!with(&good.replace("-01", "-00")).unwrap().is_sampled());
        assert!(with(&good.replacen("00-", "01-", 1).replace("-01", "-01-more")).is_some());
        for bad in [
            "",
            "00",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert!(with(bad).is_none(), "{bad}");
        }
        assert!(parent(&Received::new("s", "")).is_none());
    }
}
