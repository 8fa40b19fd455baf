//! Spans of publishing, for an OpenTelemetry collector.
//!
//! A message that was enqueued within a sampled trace says so in its header `traceparent`; its
//! publish becomes a span of that trace, a child of the producer's span, as the consumer's run is.
//! The header itself goes out as it is: a consumer sees the same header, with a collector or
//! without one.
//!
//! ```text
//! worker ──span──▶ queue, bounded ──▶ one task ──batch, OTLP over HTTP──▶ collector
//!            └─ full: dropped, counted
//! ```
//!
//! No pass ever waits for the collector. One that cannot be reached costs its spans, a line in the
//! log when it goes and one when it is back, and at the shutdown no more than `flush`.

use std::{
    collections::BTreeMap,
    mem,
    time::{Duration, SystemTime},
};

use opentelemetry::{
    Context, KeyValue,
    propagation::{Extractor, TextMapPropagator as _},
    trace::{Span as _, SpanKind, Status, TraceContextExt as _, Tracer as _, TracerProvider as _},
};
use opentelemetry_otlp::{Protocol, RetryPolicy, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    propagation::TraceContextPropagator,
    trace::{SdkTracer, SdkTracerProvider, Span, SpanData, SpanExporter as _, SpanProcessor},
};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::metrics::Metrics;
use crate::delivery::{Message, Outcome};

/// Spans that wait for the collector at most; about a kilobyte each.
const QUEUE: usize = 2048;
/// Spans of one request at most.
const BATCH: usize = 512;
/// How long a span waits for others to share its request.
const COMPANY: Duration = Duration::from_secs(1);
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Where a NATS server listens whose URL has no port.
const NATS_PORT: i64 = 4222;

/// Makes spans of published messages. Clones share the queue; it ends with the last of them.
#[derive(Clone, Debug)]
pub(crate) struct Traces {
    tracer: SdkTracer,
    /// The attributes that name the server.
    server: Vec<KeyValue>,
}

impl Traces {
    /// With a collector at this URL, and NATS at another. The caller runs the [`Export`], which
    /// sends the spans.
    pub(crate) fn new(endpoint: &str, nats_url: &str, metrics: &Metrics) -> Result<(Self, Export), String> {
        let mut exporter = SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(endpoint)
            .with_timeout(EXPORT_TIMEOUT)
            // The next batch is the next attempt.
            .with_retry_policy(RetryPolicy::default().with_max_retries(0))
            .build()
            .map_err(|error| error.to_string())?;
        let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        let resource =
            Resource::builder_empty().with_service_name("oncebox-relay").with_attribute(version).build();
        exporter.set_resource(&resource);
        let (sender, spans) = mpsc::channel(QUEUE);
        let queue = Queue { sender, metrics: metrics.clone() };
        let provider =
            SdkTracerProvider::builder().with_span_processor(queue).with_resource(resource).build();
        let tracer = provider.tracer("oncebox-relay");
        let export = Export {
            exporter,
            spans,
            batch: Vec::new(),
            endpoint: endpoint.to_owned(),
            failing: false,
            metrics: metrics.clone(),
        };
        Ok((Self { tracer, server: server(nats_url) }, export))
    }

    /// A span for each message that was answered and belongs to a sampled trace, with the names of
    /// OpenTelemetry's conventions for messaging. The subject is no part of the span's name, since
    /// it may have the number of an order in it. The kind is CLIENT, because consumers are children
    /// of the producer's span, not of this one.
    pub(crate) fn published(&self, messages: &[Message], outcomes: &[Outcome]) {
        let (now, here) = (Instant::now(), SystemTime::now());
        let at = |then: Instant| here - now.saturating_duration_since(then);
        for (message, outcome) in messages.iter().zip(outcomes) {
            let (start, end, failure, duplicate) = match outcome {
                Outcome::Unknown | Outcome::Behind | Outcome::Passed => continue,
                Outcome::Stored { duplicate, sent_at, acknowledged_at, .. } => {
                    (at(*sent_at), at(*acknowledged_at), None, *duplicate)
                }
                Outcome::Failed(_, failure) => (here, here, Some(failure), false),
            };
            let Some(parent) = parent(message) else { continue };
            let mut span = self
                .tracer
                .span_builder("publish")
                .with_kind(SpanKind::Client)
                .with_start_time(start)
                .with_attributes([
                    KeyValue::new("messaging.system", "nats"),
                    KeyValue::new("messaging.operation.name", "publish"),
                    KeyValue::new("messaging.operation.type", "send"),
                    KeyValue::new("messaging.destination.name", message.subject.clone()),
                    KeyValue::new("messaging.message.id", message.key.clone()),
                    KeyValue::new("oncebox.id", message.id),
                    KeyValue::new("oncebox.duplicate", duplicate),
                ])
                .start_with_context(&self.tracer, &parent);
            span.set_attributes(self.server.iter().cloned());
            if let Some(failure) = failure {
                span.set_attribute(KeyValue::new("error.type", failure.cause().name()));
                span.set_status(Status::error(failure.to_string()));
            }
            span.end_with_timestamp(end);
        }
    }
}

/// `server.address` and `server.port`; none of a cluster, whose client moves between its servers.
fn server(url: &str) -> Vec<KeyValue> {
    let authority = url.split_once("://").map_or(url, |(_, rest)| rest).trim_end_matches('/');
    let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    if authority.is_empty() || authority.contains(',') {
        return Vec::new();
    }
    let port = authority.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
    let (host, port) = port.unwrap_or((authority, NATS_PORT));
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    vec![KeyValue::new("server.address", host), KeyValue::new("server.port", port)]
}

/// The context that a message was enqueued in, if its spans are sampled.
fn parent(message: &Message) -> Option<Context> {
    let headers = Headers(message.own_headers().ok()?);
    let context = TraceContextPropagator::new().extract_with_context(&Context::new(), &headers);
    let is_sampled = context.span().span_context().is_valid() && context.span().span_context().is_sampled();
    is_sampled.then_some(context)
}

/// Names of headers are compared without regard to case.
struct Headers(BTreeMap<String, String>);

impl Extractor for Headers {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| name.eq_ignore_ascii_case(key)).map(|(_, value)| value.as_str())
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }
}

/// The way in: never waits.
#[derive(Debug)]
struct Queue {
    sender: mpsc::Sender<SpanData>,
    metrics: Metrics,
}

impl SpanProcessor for Queue {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if self.sender.try_send(span).is_err() {
            self.metrics.spans_dropped.inc();
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// The task that takes spans from the queue to the collector.
#[derive(Debug)]
pub(crate) struct Export {
    exporter: SpanExporter,
    spans: mpsc::Receiver<SpanData>,
    batch: Vec<SpanData>,
    endpoint: String,
    /// The last attempt failed, and the log says so.
    failing: bool,
    metrics: Metrics,
}

impl Export {
    /// Runs until the last worker is gone and all is sent, but after the shutdown no longer than
    /// `flush`.
    pub(crate) async fn run(mut self, shutdown: CancellationToken, flush: Duration) {
        let too_late = async {
            shutdown.cancelled().await;
            sleep(flush).await;
        };
        tokio::select! {
            () = self.send_all() => {}
            () = too_late => {}
        }
        let left = self.spans.len() + self.batch.len();
        if left > 0 {
            self.metrics.spans_dropped.inc_by(left as u64);
            warn!(spans = left, "the collector did not take the last spans in time; they are dropped");
        }
    }

    async fn send_all(&mut self) {
        while self.fill().await || !self.batch.is_empty() {
            // Kept until the answer is there, so that the spans left can be counted.
            let answer = timeout(EXPORT_TIMEOUT, self.exporter.export(self.batch.clone())).await;
            let count = mem::take(&mut self.batch).len();
            let problem = match answer {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some(format!("no answer within {EXPORT_TIMEOUT:?}")),
            };
            self.report(problem, count);
        }
    }

    /// Waits for a span, then a little for others; false when there will be no more.
    async fn fill(&mut self) -> bool {
        let Some(first) = self.spans.recv().await else { return false };
        self.batch.push(first);
        let deadline = Instant::now() + COMPANY;
        while self.batch.len() < BATCH {
            match timeout_at(deadline, self.spans.recv()).await {
                Ok(Some(span)) => self.batch.push(span),
                Ok(None) => return false,
                Err(_) => return true,
            }
        }
        true
    }

    /// Says when the collector goes and comes, not each time.
    fn report(&mut self, problem: Option<String>, count: usize) {
        let was_failing = mem::replace(&mut self.failing, problem.is_some());
        let endpoint = self.endpoint.as_str();
        match problem {
            Some(error) => {
                self.metrics.spans_dropped.inc_by(count as u64);
                if !was_failing {
                    warn!(
                        endpoint,
                        error, "the collector does not take spans; they are dropped until it does"
                    );
                }
            }
            None if was_failing => info!(endpoint, "the collector takes spans again"),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(url: &str, expected: Option<(&'static str, i64)>) {
        let expected = expected.map(|(host, port)| {
            vec![KeyValue::new("server.address", host), KeyValue::new("server.port", port)]
        });
        assert_eq!(server(url), expected.unwrap_or_default(), "{url}");
    }

    #[test]
    fn a_span_names_the_server_where_there_is_one() {
        check("nats://nats.internal:4333", Some(("nats.internal", 4333)));
        check("tls://nats.internal/", Some(("nats.internal", 4222)));
        check("nats://[::1]:4222", Some(("::1", 4222)));
        check("nats://[::1]", Some(("::1", 4222)));
        check("10.0.0.7", Some(("10.0.0.7", 4222)));
        check("nats://a:4222,nats://b:4222", None);
        check("", None);
    }
}
