//! `/livez`, `/readyz` and `/metrics` of `oncebox saga run`.

use std::{
    fmt::{Error, Write as _},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use oncebox_relay::{Probed, serve_probes};
use oncebox_saga::Orchestrator;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// A look at the database has a limit of half a minute: a loop that ends none for this time hangs.
const STUCK_AFTER: Duration = Duration::from_secs(120);
/// PostgreSQL is away when no look has ended well for this time.
const AWAY_AFTER: Duration = Duration::from_secs(15);

/// The health of an orchestrator.
#[derive(Clone)]
pub(super) struct Health {
    pub(super) orchestrator: Orchestrator,
    pub(super) is_connected: Arc<dyn Fn() -> bool + Send + Sync>,
}

/// Serves it until shutdown; at once when there is no address.
pub(super) async fn serve(
    listen: Option<SocketAddr>,
    health: Health,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let Some(address) = listen else { return Ok(()) };
    let listener = TcpListener::bind(address).await;
    let listener =
        listener.with_context(|| format!("{address} cannot be listened on: choose another --http-listen"))?;
    let address = listener.local_addr().unwrap_or(address);
    tracing::info!(%address, "serving /livez, /readyz and /metrics");
    serve_probes(listener, health, shutdown).await;
    Ok(())
}

impl Probed for Health {
    fn stuck(&self) -> Option<String> {
        let ended = self.orchestrator.watched().ended.filter(|ago| *ago > STUCK_AFTER)?;
        Some(format!("deadlines were last looked at {} s ago: the process hangs", ended.as_secs()))
    }

    fn not_ready(&self) -> Option<(String, bool)> {
        let watched = self.orchestrator.watched();
        let problem = match watched.succeeded {
            None if !watched.caught_up => {
                "the answers that waited at its start are not all taken yet".to_owned()
            }
            None => "PostgreSQL has not been asked yet".to_owned(),
            Some(ago) if ago > AWAY_AFTER => format!("PostgreSQL last answered {} s ago", ago.as_secs()),
            Some(_) if !(self.is_connected)() => "NATS is not connected".to_owned(),
            Some(_) => return None,
        };
        Some((problem, true))
    }

    async fn scrape(&self) -> Result<String, Error> {
        let (counts, mut text) = (self.orchestrator.counts(), String::new());
        let answers = [
            ("applied", counts.applied),
            ("early", counts.early),
            ("late", counts.late),
            ("duplicate", counts.duplicate),
            ("foreign", counts.foreign),
            ("refused", counts.refused),
        ];
        let sagas = [
            ("completed", counts.completed),
            ("compensated", counts.compensated),
            ("stuck", counts.stuck),
            ("quarantined", counts.quarantined),
        ];
        let families = [
            ("oncebox_leader_answers", "result", "Answers, by what became of them", &answers[..]),
            ("oncebox_leader_sagas", "state", "Times that a saga came into a state", &sagas[..]),
        ];
        for (name, label, help, rows) in families {
            writeln!(text, "# HELP {name} {help}.\n# TYPE {name} counter")?;
            for (value, count) in rows {
                writeln!(text, "{name}_total{{{label}=\"{value}\"}} {count}")?;
            }
        }
        let ready = i32::from(self.not_ready().is_none());
        writeln!(
            text,
            "# HELP oncebox_leader_ready Whether it is ready.\n# TYPE oncebox_leader_ready gauge"
        )?;
        writeln!(text, "oncebox_leader_ready {ready}\n# EOF")?;
        Ok(text)
    }
}
