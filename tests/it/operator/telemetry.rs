//! A relay, an inbox and an HTTP layer at work, with a real Prometheus that scrapes both.

use std::{collections::BTreeSet, fs, path::Path};

use oncebox_http::IdempotencyLayer;
use oncebox_inbox::{Inbox, Measured, metrics_text};
use oncebox_tests::{Nats, Prometheus, Proxy, TestEnv, eventually};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    task::JoinSet,
};

use crate::{
    inbox::support::{builder, environment},
    relay::{
        process::Process,
        support::{LIMIT, fresh_stream, stream_config, values, with},
    },
};

/// The file of this name in `deploy/` or the top folder.
pub(crate) fn file(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Everything that telemetry comes from, and who looks at it.
pub(crate) struct Site {
    pub(crate) env: TestEnv,
    pub(crate) nats: Nats,
    /// Between the relay and PostgreSQL.
    pub(crate) postgres: Proxy,
    pub(crate) relay: Process,
    pub(crate) inbox: Inbox,
    pub(crate) prometheus: Prometheus,
    _serving: JoinSet<()>,
}

impl Site {
    /// With alert rules; `for:` is overridden, so that they fire at once.
    pub(crate) async fn start(rules: &str) -> Self {
        let env = environment().await;
        let nats = Nats::start_with("max_payload: 4096").await.unwrap();
        fresh_stream(&nats.url(), stream_config("SITE", &env.subject("taken.>"))).await;
        let port = env.database_url().parse::<tokio_postgres::Config>().unwrap().get_ports()[0];
        let postgres = Proxy::start(([127, 0, 0, 1], port).into()).await;
        let through = env.database_url().replacen(&format!(":{port}/"), &format!(":{}/", postgres.port()), 1);
        let relay = Process::relay(&with(&values(&through, &nats.url()), [("http-listen", "127.0.0.1:0")]));
        let inbox = builder(&env).build().unwrap();
        let layer = IdempotencyLayer::builder(env.pool(1)).scope("shop").single_tenant().build().unwrap();
        let (serving, port) = serve(inbox.clone(), layer).await;
        let config = format!(
            "global: {{scrape_interval: 500ms, evaluation_interval: 500ms}}\n\
             rule_files: [rules.yml]\n\
             scrape_configs:\n\
             - {{job_name: oncebox-orders, static_configs: [{{targets: ['{}']}}]}}\n\
             - {{job_name: payments, static_configs: [{{targets: ['127.0.0.1:{port}']}}]}}\n",
            relay.address().await
        );
        let hasty = |line: &str| match line.trim_start() {
            text if text.starts_with("for: ") => line.replace(text, "for: 0s"),
            _ => line.to_owned(),
        };
        let rules: Vec<String> = rules.lines().map(hasty).collect();
        let prometheus = Prometheus::start(&config, &rules.join("\n")).await.unwrap();
        Self { env, nats, postgres, relay, inbox, prometheus, _serving: serving }
    }

    /// The names of the alerts that fire now.
    pub(crate) async fn firing(&self) -> BTreeSet<String> {
        let alerts = self.prometheus.api("/api/v1/alerts").await.unwrap();
        let alerts = alerts["alerts"].as_array().unwrap().iter();
        let firing = alerts.filter(|alert| alert["state"] == "firing");
        firing.map(|alert| alert["labels"]["alertname"].as_str().unwrap().to_owned()).collect()
    }

    pub(crate) async fn await_firing(&self, name: &str) {
        eventually(&format!("{name} fires"), LIMIT, async || {
            self.firing().await.contains(name).then_some(())
        })
        .await;
    }

    pub(crate) async fn await_quiet(&self, name: &str) {
        let what = format!("{name} fires no more");
        eventually(&what, LIMIT, async || (!self.firing().await.contains(name)).then_some(())).await;
    }

    /// All alerting rules, as Prometheus has read them.
    pub(crate) async fn rules(&self) -> Vec<Value> {
        let groups = self.prometheus.api("/api/v1/rules").await.unwrap();
        let groups = groups["groups"].as_array().unwrap().iter();
        groups.flat_map(|group| group["rules"].as_array().unwrap().clone()).collect()
    }
}

/// A service's own HTTP server, which answers every request with the metrics of both.
async fn serve(inbox: Inbox, layer: IdempotencyLayer) -> (JoinSet<()>, u16) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            // A request for a scrape fits into one packet.
            let _ = stream.read(&mut [0; 4096]).await;
            let body = metrics_text([Measured::from(&inbox), (&layer).into()]);
            let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/plain; version=0.0.4";
            let answer = format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    (serving, port)
}
