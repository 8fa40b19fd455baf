//! One trace from the producer over the relay to the consumer; a collector that is away delays no
//! message.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use async_nats::jetstream::consumer::pull::OrderedConfig;
use futures_util::StreamExt;
use oncebox_inbox::{Outcome, Received};
use oncebox_outbox::{Message, Outbox};
use oncebox_tests::{Proxy, TestEnv, eventually};
use opentelemetry::trace::{TraceContextExt, TracerProvider};
use opentelemetry_proto::tonic::{
    collector::{metrics::v1::ExportMetricsServiceRequest, trace::v1::ExportTraceServiceRequest},
    trace::v1::{span::SpanKind, status::StatusCode},
};
use opentelemetry_sdk::{
    error::OTelSdkResult,
    trace::{SdkTracerProvider, SpanData, SpanProcessor},
};
use tokio::time::Instant;
use tracing::{Instrument, instrument::WithSubscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::prelude::*;

use super::collector::{Collector, attribute};
use crate::{
    inbox::support::{Does, SCOPE, inbox, stream_environment},
    relay::{
        process::Process,
        support::{LIMIT, await_messages, count, enqueue, values_of, with},
    },
};

/// The exporter of a service's own spans.
#[derive(Clone, Debug, Default)]
struct Ended(Arc<Mutex<Vec<SpanData>>>);

impl SpanProcessor for Ended {
    fn on_start(&self, _: &mut opentelemetry_sdk::trace::Span, _: &opentelemetry::Context) {}

    fn on_end(&self, span: SpanData) {
        self.0.lock().unwrap().push(span);
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

impl Ended {
    fn subscriber(&self) -> impl tracing::Subscriber + Send + Sync {
        let tracer = SdkTracerProvider::builder().with_span_processor(self.clone()).build().tracer("service");
        tracing_subscriber::registry().with(tracing_opentelemetry::layer().with_tracer(tracer))
    }
}

fn message(env: &TestEnv, key: &str) -> Message {
    Message::bytes(key.parse().unwrap(), env.subject("a").parse().unwrap(), r#"{"n":1}"#)
}

/// Enqueues within a span of its own; returns trace and span.
async fn produce(
    env: &TestEnv,
    key: &str,
    subscriber: impl tracing::Subscriber + Send + Sync + 'static,
) -> (String, String) {
    let produce = async {
        let span = tracing::info_span!("place order");
        let context = span.context().span().span_context().clone();
        let mut client = env.pg().await;
        async {
            let transaction = client.transaction().await.unwrap();
            Outbox::default().enqueue(&transaction, &message(env, key)).await.unwrap();
            transaction.commit().await.unwrap();
        }
        .instrument(span)
        .await;
        (context.trace_id().to_string(), context.span_id().to_string())
    };
    produce.with_subscriber(subscriber).await
}

async fn enqueue_plain(env: &TestEnv, message: Message) {
    let mut client = env.pg().await;
    let transaction = client.transaction().await.unwrap();
    Outbox::default().enqueue(&transaction, &message).await.unwrap();
    transaction.commit().await.unwrap();
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The attributes that the conventions for messaging require of a consumer's span.
fn assert_handled(span: &SpanData) {
    let said = |name: &str| {
        let found = span.attributes.iter().find(|attribute| attribute.key.as_str() == name);
        found.map(|attribute| attribute.value.as_str().into_owned())
    };
    for (name, expected) in [
        ("messaging.system", "nats"),
        ("messaging.operation.name", "process"),
        ("messaging.operation.type", "process"),
        ("messaging.consumer.group.name", SCOPE),
    ] {
        assert_eq!(said(name).as_deref(), Some(expected), "{name}");
    }
}

/// Of the span of a handler with this outcome.
async fn error_type(env: &TestEnv, outcome: Outcome<String>) -> Option<String> {
    let ended = Ended::default();
    let outcome = Mutex::new(Some(outcome));
    let handler = Does::new(move |_, _| {
        let outcome = outcome.lock().unwrap().take().unwrap();
        Box::pin(async move { Ok(outcome) })
    });
    let received = Received::new("a", r#"{"n":1}"#).header("Idempotency-Key", "failing");
    inbox(env).run(&handler, &received).with_subscriber(ended.subscriber()).await.unwrap();
    let spans = ended.0.lock().unwrap();
    let found = spans[0].attributes.iter().find(|attribute| attribute.key.as_str() == "error.type")?;
    Some(found.value.as_str().into_owned())
}

#[tokio::test]
async fn one_trace_leads_from_the_producer_over_the_relay_to_the_consumer() {
    let (env, collector) = (stream_environment().await, Collector::start().await);
    let relay = Process::relay(&with(
        &values_of(&env),
        [("otlp-endpoint", &collector.url()), ("http-listen", "127.0.0.1:0")],
    ));
    // Without a context, with a broken one, with one that is not sampled: delivered, without a
    // span.
    enqueue_plain(&env, message(&env, "plain")).await;
    enqueue_plain(&env, message(&env, "broken").header("traceparent", "00-zz-1-01").unwrap()).await;
    let unsampled = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
    enqueue_plain(&env, message(&env, "unsampled").header("traceparent", unsampled).unwrap()).await;
    let ended = Ended::default();
    let (trace, producer) = produce(&env, "order", ended.subscriber()).await;

    // The consumer: its handler enqueues in its turn.
    let stream = env.stream().await;
    let consumer = stream.create_consumer(OrderedConfig::default()).await.unwrap();
    let mut messages = consumer.messages().await.unwrap();
    let follow_up = message(&env, "follow-up");
    let handler = Does::new(move |cx, _| {
        let follow_up = follow_up.clone();
        Box::pin(async move {
            Outbox::default().enqueue(cx.transaction(), &follow_up).await?;
            Ok(Outcome::done(String::new()))
        })
    });
    let received = loop {
        let delivered = tokio::time::timeout(LIMIT, messages.next()).await.unwrap().unwrap().unwrap();
        let received = Received::from_jetstream(&delivered).unwrap();
        if received.header_value("Idempotency-Key") == Some("order") {
            break received;
        }
    };
    let inbox = inbox(&env);
    inbox.run(&handler, &received).with_subscriber(ended.subscriber()).await.unwrap();
    let handled = ended.0.lock().unwrap().iter().find(|span| span.name == "handle").expect("a span").clone();
    assert_eq!(handled.span_context.trace_id().to_string(), trace);
    assert_eq!(handled.parent_span_id.to_string(), producer);
    assert!(handled.parent_span_is_remote);
    assert_handled(&handled);
    for (outcome, cause) in [(Outcome::retry(Duration::ZERO), "retry"), (Outcome::dead("no use"), "dead")] {
        assert_eq!(error_type(&env, outcome).await.as_deref(), Some(cause));
    }

    let published = collector.span_of("order").await;
    assert_eq!((hex(&published.trace_id), hex(&published.parent_span_id)), (trace.clone(), producer));
    assert_eq!((&*published.name, published.kind()), ("publish", SpanKind::Client));
    let address = env.nats_url().trim_start_matches("nats://").to_owned();
    let (host, port) = address.rsplit_once(':').unwrap();
    let expected = [
        ("messaging.system", "nats".to_owned()),
        ("messaging.operation.name", "publish".to_owned()),
        ("messaging.operation.type", "send".to_owned()),
        ("server.address", host.to_owned()),
        ("server.port", format!("IntValue({port})")),
    ];
    for (name, value) in expected {
        assert_eq!(attribute(&published, name), Some(value), "{name}");
    }
    assert_eq!(attribute(&published, "error.type"), None);
    assert_eq!(attribute(&published, "messaging.destination.name"), Some(env.subject("a")));
    assert!(published.start_time_unix_nano <= published.end_time_unix_nano);
    assert!(published.end_time_unix_nano - published.start_time_unix_nano < 30_000_000_000, "{published:?}");
    // And on: the message that the handler enqueued is a child of its span, in the same trace.
    let next = collector.span_of("follow-up").await;
    assert_eq!(hex(&next.trace_id), trace);
    assert_eq!(hex(&next.parent_span_id), handled.span_context.span_id().to_string());
    assert_eq!(collector.spans().len(), 2, "no span of a message that nobody traces");
    await_messages(&stream, 5).await;
    let request = collector.sent::<ExportTraceServiceRequest>("/v1/traces").remove(0);
    let resource = &request.resource_spans[0].resource.as_ref().unwrap().attributes;
    assert!(format!("{resource:?}").contains("oncebox-relay"), "{resource:?}");
    assert_eq!(relay.metric("oncebox_spans_dropped_total").await, 0.0);
}

#[tokio::test]
async fn a_failed_publish_and_a_failed_handler_say_so_and_a_shutdown_sends_what_waits() {
    let (env, collector) = (stream_environment().await, Collector::start().await);
    let relay = Process::relay(&with(
        &values_of(&env),
        [("otlp-endpoint", &collector.url()), ("http-listen", "127.0.0.1:0")],
    ));
    let context = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let astray =
        Message::bytes("astray".parse().unwrap(), format!("astray.{}", env.name()).parse().unwrap(), "");
    enqueue_plain(&env, astray.header("TraceParent", context).unwrap()).await;
    eventually("parked", LIMIT, async || (relay.metric("oncebox_parked_total").await > 0.0).then_some(()))
        .await;
    relay.signal("TERM").await;
    let (status, log) = relay.ended().await;
    assert_eq!(status.code(), Some(0), "{log}");
    let span = collector.spans().pop().expect("sent at the shutdown at the latest");
    let status = span.status.clone().unwrap();
    assert_eq!(status.code(), StatusCode::Error);
    assert!(status.message.contains("no stream"), "{status:?}");
    assert_eq!(attribute(&span, "error.type").as_deref(), Some("no-stream"));

    let ended = Ended::default();
    let panics = Does::new(|_, _| Box::pin(async { panic!("a bug") }));
    let bad = crate::inbox::support::message("k", 1).header("traceparent", context);
    inbox(&env).run(&panics, &bad).with_subscriber(ended.subscriber()).await.unwrap();
    let handled = ended.0.lock().unwrap().pop().unwrap();
    assert!(matches!(handled.status, opentelemetry::trace::Status::Error { .. }), "{handled:?}");
    assert_eq!(handled.span_context.trace_id().to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
}

#[tokio::test]
async fn a_collector_that_is_away_delays_nobody_and_is_logged_once() {
    let (env, collector) = (TestEnv::new().await, Collector::start().await);
    let stream = env.stream().await;
    let proxy = Proxy::start(([127, 0, 0, 1], collector.port).into()).await;
    proxy.refuse(true);
    let endpoint = format!("http://127.0.0.1:{}/", proxy.port());
    let relay = Process::relay(&with(
        &values_of(&env),
        [("otlp-endpoint", &endpoint), ("http-listen", "127.0.0.1:0")],
    ));
    let client = env.pg().await;
    let enqueue = async |prefix: &str| {
        let sql = "SELECT count(oncebox.enqueue($1 || n, $2, 'x', jsonb_build_object('traceparent',
                       '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01')))
                   FROM generate_series(1, 6000) AS n";
        client.query_one(sql, &[&prefix, &env.subject("a")]).await.unwrap();
    };
    // More than the queue holds, refused first, then with a collector that takes connections and
    // never answers.
    enqueue("refused").await;
    await_messages(&stream, 6_000).await;
    relay.await_log("does not take spans").await;
    proxy.refuse(false);
    proxy.stall(true);
    enqueue("stalled").await;
    await_messages(&stream, 12_000).await;
    eventually("dropped", LIMIT, async || {
        (relay.metric("oncebox_spans_dropped_total").await > 2_000.0).then_some(())
    })
    .await;
    assert_eq!(relay.log().matches("does not take spans").count(), 1, "{}", relay.log());
    proxy.stall(false);
    proxy.cut();
    relay.await_log("takes spans again").await;

    // Away once more at the shutdown.
    proxy.stall(true);
    enqueue("last").await;
    await_messages(&stream, 18_000).await;
    let started = Instant::now();
    relay.signal("TERM").await;
    let (status, log) = relay.ended().await;
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    assert!(log.contains("last spans"), "{log}");
    assert!(!log.contains("ERROR"), "{log}");
}

#[tokio::test]
async fn the_collector_gets_the_metrics_of_a_scrape_and_the_last_ones_at_the_shutdown() {
    let (env, collector) = (TestEnv::new().await, Collector::start().await);
    let stream = env.stream().await;
    let start = |seconds: &str| {
        let (url, listen) = (collector.url(), ("http-listen", "127.0.0.1:0"));
        Process::relay(&with(
            &values_of(&env),
            [("otlp-endpoint", &url), ("otlp-metrics-seconds", seconds), listen],
        ))
    };
    let relay = start("1");
    enqueue_plain(&env, message(&env, "a")).await;
    await_messages(&stream, 1).await;
    eventually("reported", LIMIT, async || {
        (collector.counter("oncebox_published") == Some(1.0)).then_some(())
    })
    .await;
    let (_, text) = relay.get("/metrics").await;
    let scraped = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let mut scraped: Vec<&str> = scraped.collect();
    // Only families that have samples are told.
    scraped.retain(|name| text.lines().any(|line| line.starts_with(name)));
    let told: Vec<String> = collector.metrics().into_iter().map(|metric| metric.name).collect();
    assert!(told.len() > 20, "{told:?}");
    assert_eq!(told, scraped);
    relay.signal("TERM").await;
    relay.ended().await;

    // The first report is an hour away, and the relay is ended in the middle of its work.
    let relay = start("3600");
    let client = env.pg().await;
    enqueue(&client, &env.subject("a"), "b-", 0..2_000, 0).await;
    await_messages(&stream, 2).await;
    let before = collector.sent::<ExportMetricsServiceRequest>("/v1/metrics").len();
    relay.signal("TERM").await;
    let (status, log) = relay.ended().await;
    assert_eq!(status.code(), Some(0), "{log}");
    assert_eq!(collector.sent::<ExportMetricsServiceRequest>("/v1/metrics").len(), before + 1);
    let published = count(&stream).await - 1;
    assert_eq!(collector.counter("oncebox_published"), Some(published as f64), "of this process");
}
