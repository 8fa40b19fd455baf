//! A Prometheus of a test's own.

use std::{fmt::Write as _, fs, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::{
    find,
    guardian::Guardian,
    http::http_get,
    postgres::{free_port, tail},
};

const START_DEADLINE: Duration = Duration::from_secs(60);
const PORT_ATTEMPTS: u32 = 5;

/// A Prometheus on a free loopback port, with a store of its own.
///
/// It ends, and its directory is deleted, when this value is dropped and when this process dies by
/// any means.
#[derive(Debug)]
pub struct Prometheus {
    guardian: Guardian,
    port: u16,
}

impl Prometheus {
    /// Starts the program that [`crate::prometheus_directory`] finds, with this configuration, and
    /// with these rules as the file `rules.yml` beside it.
    ///
    /// # Errors
    /// No program, or it does not start; the error has the end of its log.
    pub async fn start(config: &str, rules: &str) -> Result<Self> {
        let program = find::prometheus_directory()?.join("prometheus");
        for _ in 0..PORT_ATTEMPTS {
            // If another process takes the port before the server does, the server ends, and
            // another port is tried.
            let port = free_port()?;
            let guardian = Guardian::new("prometheus", "KILL", None, |directory| {
                vec![
                    program.clone().into_os_string(),
                    format!("--config.file={}/prometheus.yml", directory.display()).into(),
                    format!("--storage.tsdb.path={}/data", directory.display()).into(),
                    format!("--web.listen-address=127.0.0.1:{port}").into(),
                ]
            })?;
            fs::write(guardian.directory().join("prometheus.yml"), config)?;
            fs::write(guardian.directory().join("rules.yml"), rules)?;
            let mut server = Self { guardian, port };
            server.guardian.start().await?;
            if server.is_ready().await? {
                return Ok(server);
            }
        }
        bail!("prometheus found no free port in {PORT_ATTEMPTS} attempts")
    }

    /// False when it ended because another process has its port.
    async fn is_ready(&mut self) -> Result<bool> {
        let deadline = Instant::now() + START_DEADLINE;
        while Instant::now() < deadline {
            if self.guardian.has_ended() {
                let log = self.guardian.log();
                ensure!(log.contains("address already in use"), "prometheus ended: {}", tail(&log));
                return Ok(false);
            }
            if http_get(self.port, "/-/ready").await.is_ok_and(|answer| answer.starts_with("HTTP/1.0 200")) {
                return Ok(true);
            }
            sleep(Duration::from_millis(50)).await;
        }
        bail!("prometheus is not ready after {START_DEADLINE:?}: {}", tail(&self.guardian.log()))
    }

    /// The `data` of an answer of its API, such as of `/api/v1/rules`.
    ///
    /// # Errors
    /// It does not answer, or refuses: then the error has its reason.
    pub async fn api(&self, path: &str) -> Result<Value> {
        let answer = http_get(self.port, path).await?;
        let (_, body) = answer.split_once("\r\n\r\n").context("an HTTP answer")?;
        let mut answer: Value = serde_json::from_str(body).with_context(|| format!("{path}: {body}"))?;
        ensure!(answer["status"] == "success", "{path}: {body}");
        Ok(answer["data"].take())
    }

    /// The value of an expression now: the samples of an instant vector.
    ///
    /// # Errors
    /// It is not a valid expression; the error says why.
    pub async fn query(&self, expression: &str) -> Result<Vec<Value>> {
        let mut encoded = String::new();
        for byte in expression.bytes() {
            write!(encoded, "%{byte:02X}")?;
        }
        let mut data =
            self.api(&format!("/api/v1/query?query={encoded}")).await.context(expression.to_owned())?;
        Ok(data["result"].as_array_mut().map(std::mem::take).unwrap_or_default())
    }
}
