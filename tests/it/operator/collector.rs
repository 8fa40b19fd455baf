//! An OTLP collector, as far as a relay needs one.

use std::sync::{Arc, Mutex};

use axum::{Router, body::Bytes, extract::State, http::Uri};
use oncebox_tests::eventually;
use opentelemetry_proto::tonic::{
    collector::{metrics::v1::ExportMetricsServiceRequest, trace::v1::ExportTraceServiceRequest},
    common::v1::any_value::Value,
    metrics::v1::{Metric, metric::Data, number_data_point::Value as Number},
    trace::v1::Span,
};
use tokio::{net::TcpListener, task::JoinSet};

use crate::relay::support::LIMIT;

/// HTTP that takes protobuf.
pub(crate) struct Collector {
    pub(crate) port: u16,
    requests: Arc<Mutex<Vec<(String, Bytes)>>>,
    _serving: JoinSet<()>,
}

impl Collector {
    pub(crate) async fn start() -> Self {
        type Requests = Arc<Mutex<Vec<(String, Bytes)>>>;
        async fn take(State(requests): State<Requests>, url: Uri, body: Bytes) {
            requests.lock().unwrap().push((url.path().to_owned(), body));
        }
        let requests = Requests::default();
        let router = Router::new().fallback(take).with_state(Arc::clone(&requests));
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { port, requests, _serving: serving }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The requests to this path.
    pub(crate) fn sent<T: prost::Message + Default>(&self, path: &str) -> Vec<T> {
        let requests = self.requests.lock().unwrap();
        let of_path = requests.iter().filter(|(to, _)| to == path);
        of_path.map(|(_, body)| T::decode(body.clone()).expect("protobuf of OTLP")).collect()
    }

    pub(crate) fn spans(&self) -> Vec<Span> {
        let requests = self.sent::<ExportTraceServiceRequest>("/v1/traces");
        let resources = requests.into_iter().flat_map(|request| request.resource_spans);
        resources.flat_map(|resource| resource.scope_spans).flat_map(|scope| scope.spans).collect()
    }

    /// The metrics of the last report.
    pub(crate) fn metrics(&self) -> Vec<Metric> {
        let last = self.sent::<ExportMetricsServiceRequest>("/v1/metrics").pop().unwrap_or_default();
        let resources = last.resource_metrics.into_iter();
        resources.flat_map(|resource| resource.scope_metrics).flat_map(|scope| scope.metrics).collect()
    }

    /// The value of a counter without labels, in the last report.
    pub(crate) fn counter(&self, name: &str) -> Option<f64> {
        let found = self.metrics().into_iter().find(|metric| metric.name == name)?;
        let Data::Sum(sum) = found.data? else { return None };
        assert!(sum.is_monotonic && sum.data_points.len() == 1, "{sum:?}");
        match sum.data_points[0].value? {
            Number::AsDouble(value) => Some(value),
            Number::AsInt(_) => None,
        }
    }

    /// Waits for the span of a message.
    pub(crate) async fn span_of(&self, key: &str) -> Span {
        eventually(&format!("the span of {key}"), LIMIT, async || {
            self.spans()
                .into_iter()
                .find(|span| attribute(span, "messaging.message.id").as_deref() == Some(key))
        })
        .await
    }
}

pub(crate) fn attribute(span: &Span, key: &str) -> Option<String> {
    let found = span.attributes.iter().find(|attribute| attribute.key == key)?;
    match found.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text.clone()),
        other => Some(format!("{other:?}")),
    }
}
