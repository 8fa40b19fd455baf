//! The trace context that travels with a message.

use std::{borrow::Cow, collections::BTreeMap};

use crate::Message;

const TRACEPARENT: &str = "traceparent";

/// The headers of a message, with those of the current trace context unless the message brings its
/// own.
pub(crate) fn with_context(message: &Message) -> Cow<'_, BTreeMap<String, String>> {
    if message.headers().keys().any(|name| name.eq_ignore_ascii_case(TRACEPARENT)) {
        return Cow::Borrowed(message.headers());
    }
    let mut headers = Cow::Borrowed(message.headers());
    for (name, value) in current() {
        headers.to_mut().insert(name.to_owned(), value);
    }
    headers
}

#[cfg(not(feature = "opentelemetry"))]
fn current() -> Vec<(&'static str, String)> {
    Vec::new()
}

/// W3C Trace Context, version 00: the current span of `tracing`, else of OpenTelemetry itself; none
/// outside a trace.
#[cfg(feature = "opentelemetry")]
fn current() -> Vec<(&'static str, String)> {
    use opentelemetry::trace::TraceContextExt;
    use tracing_opentelemetry::OpenTelemetrySpanExt;

    let traced = |context: opentelemetry::Context| {
        let span = context.span().span_context().clone();
        span.is_valid().then_some(span)
    };
    let Some(span) =
        traced(tracing::Span::current().context()).or_else(|| traced(opentelemetry::Context::current()))
    else {
        return Vec::new();
    };
    let traceparent = format!("00-{}-{}-{:02x}", span.trace_id(), span.span_id(), span.trace_flags());
    let mut headers = vec![(TRACEPARENT, traceparent)];
    let tracestate = span.trace_state().header();
    if !tracestate.is_empty() {
        headers.push(("tracestate", tracestate));
    }
    headers
}

#[cfg(test)]
#[cfg(feature = "opentelemetry")]
mod tests {
    use opentelemetry::trace::{
        SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState, TracerProvider,
    };
    use opentelemetry_sdk::trace::SdkTracerProvider;
    use tracing_opentelemetry::OpenTelemetrySpanExt;
    use tracing_subscriber::prelude::*;

    use super::*;

    fn message() -> Message {
        Message::bytes("k".parse().unwrap(), "a".parse().unwrap(), "").header("tenant", "acme").unwrap()
    }

    /// A caller's context, as an incoming request brings it.
    fn remote() -> opentelemetry::Context {
        let state = TraceState::from_key_value([("vendor", "x")]).unwrap();
        let (trace, span) = (TraceId::from(0x4bf9_2f35_77b3_4da6), SpanId::from(0x00f0_67aa));
        let caller = SpanContext::new(trace, span, TraceFlags::SAMPLED, true, state);
        opentelemetry::Context::new().with_remote_span_context(caller)
    }

    #[test]
    fn the_current_span_of_a_real_tracer() {
        let tracer = SdkTracerProvider::builder().build().tracer("test");
        let layer = tracing_opentelemetry::layer().with_tracer(tracer);
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::with_default(subscriber, || {
            let span = tracing::info_span!("place order");
            span.set_parent(remote()).unwrap();
            let message = message();
            let headers = span.in_scope(|| with_context(&message).into_owned());
            let own = span.context().span().span_context().span_id();
            let expected = format!("00-00000000000000004bf92f3577b34da6-{own}-01");
            assert_eq!(headers[TRACEPARENT], expected, "the trace of the caller, the span of the producer");
            assert_eq!(headers["tracestate"], "vendor=x");
            assert_eq!(headers["tenant"], "acme");
        });
    }

    #[test]
    fn opentelemetry_without_a_tracing_layer() {
        let _current = remote().attach();
        let message = message();
        let headers = with_context(&message);
        assert_eq!(headers[TRACEPARENT], "00-00000000000000004bf92f3577b34da6-0000000000f067aa-01");
    }

    #[test]
    fn no_context_no_header() {
        let message = message();
        assert!(matches!(with_context(&message), Cow::Borrowed(_)));
    }

    #[test]
    fn the_message_s_own_context_is_kept() {
        let _current = remote().attach();
        let message = message().header("Traceparent", "00-01-02-01").unwrap();
        let headers = with_context(&message);
        assert_eq!(headers["Traceparent"], "00-01-02-01");
        assert!(!headers.contains_key(TRACEPARENT) && !headers.contains_key("tracestate"));
    }
}
