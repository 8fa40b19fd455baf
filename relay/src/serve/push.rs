//! Sends the metrics to an OpenTelemetry collector, as often as an operator says.

use std::time::{Duration, SystemTime};

use opentelemetry_http::{Bytes, HttpClient, Request, ResponseExt as _, hyper::HyperClient};
use opentelemetry_proto::tonic::{
    collector::metrics::v1::ExportMetricsServiceRequest,
    common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value::Value},
    metrics::v1::{ResourceMetrics, ScopeMetrics},
    resource::v1::Resource,
};
use prost::Message as _;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{databases::Databases, http::Probed as _};
use crate::{
    error::error_chain,
    telemetry::openmetrics::{Span, metrics},
};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Sends until all is `over`, and once more then. A collector that is away costs a line in the log
/// when it goes, and one when it is back: counters are cumulative, so nothing is lost.
pub(super) async fn push(url: String, every: Duration, databases: Databases, over: CancellationToken) {
    let client = HyperClient::with_default_connector(REQUEST_TIMEOUT, None);
    info!(url, ?every, "metrics go to the collector");
    let from = now();
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick is at once, before there is anything to tell.
    ticks.tick().await;
    let mut failing = false;
    loop {
        let is_over = tokio::select! {
            _ = ticks.tick() => false,
            () = over.cancelled() => true,
        };
        let sent = match databases.scrape().await {
            Ok(text) => {
                let body = Bytes::from(request(&text, Span { from, to: now() }).encode_to_vec());
                send(&client, &url, body).await
            }
            Err(error) => Err(error.to_string()),
        };
        match &sent {
            Err(error) if !failing => warn!(url, error, "the collector takes no metrics; trying again"),
            Ok(()) if failing => info!(url, "the collector takes metrics again"),
            _ => {}
        }
        failing = sent.is_err();
        if is_over {
            return;
        }
    }
}

async fn send(client: &impl HttpClient, url: &str, body: Bytes) -> Result<(), String> {
    let request = Request::post(url).header("content-type", "application/x-protobuf").body(body);
    let request = request.map_err(|error| error.to_string())?;
    let sending = async { client.send_bytes(request).await?.error_for_status() };
    match timeout(REQUEST_TIMEOUT, sending).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(error_chain(error.as_ref())),
        Err(_) => Err(format!("no answer within {REQUEST_TIMEOUT:?}")),
    }
}

fn request(text: &str, span: Span) -> ExportMetricsServiceRequest {
    let attribute = |key: &str, text: &str| KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(Value::StringValue(text.to_owned())) }),
        ..KeyValue::default()
    };
    let version = env!("CARGO_PKG_VERSION");
    let attributes = vec![attribute("service.name", "oncebox-relay"), attribute("service.version", version)];
    let scope = InstrumentationScope {
        name: "oncebox-relay".to_owned(),
        version: version.to_owned(),
        ..InstrumentationScope::default()
    };
    let scoped = ScopeMetrics { scope: Some(scope), metrics: metrics(text, span), ..ScopeMetrics::default() };
    ExportMetricsServiceRequest {
        resource_metrics: vec![ResourceMetrics {
            resource: Some(Resource { attributes, ..Resource::default() }),
            scope_metrics: vec![scoped],
            ..ResourceMetrics::default()
        }],
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
