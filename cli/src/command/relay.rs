//! `oncebox relay`: the relay of one database, or those of all that a file names, until a signal.

use oncebox_connect::config::{Config, NamedConfig, Sources};
use oncebox_relay::{Relay, Supervisor, Systemd};
use tokio::signal::unix::{SignalKind, signal};

use super::console::Console;

pub(super) async fn one(config: Config, console: Option<Console>) -> anyhow::Result<u8> {
    let shutdown = shutdown_signal("the relay")?;
    let relay = Relay::connect(config).await?.telling(systemd()).serve(shutdown);
    Console::with_relay(console, Box::pin(relay)).await?;
    Ok(0)
}

pub(super) async fn many(
    databases: Vec<NamedConfig>,
    sources: Sources,
    console: Option<Console>,
) -> anyhow::Result<u8> {
    let shutdown = shutdown_signal("the relay")?;
    let relays = Supervisor::run(databases, sources, systemd(), shutdown);
    Console::with_relay(console, Box::pin(relays)).await?;
    Ok(0)
}

/// Delivering unsupervised is better than not delivering.
fn systemd() -> Option<Systemd> {
    Systemd::from_environment(std::env::var_os).unwrap_or_else(|problem| {
        tracing::warn!("{problem}");
        None
    })
}

/// Resolves at the first SIGTERM or SIGINT. A second one ends the process at once.
pub(super) fn shutdown_signal(program: &'static str) -> anyhow::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        let next = async move || {
            tokio::select! {
                _ = terminate.recv() => (),
                _ = interrupt.recv() => (),
            }
        };
        let mut next = next;
        next().await;
        tracing::info!("draining; a second signal ends {program} at once");
        let watcher = async move {
            next().await;
            #[expect(clippy::exit, reason = "the operator asked twice; unsettled messages are sent again")]
            std::process::exit(130);
        };
        drop(tokio::runtime::Handle::current().spawn(watcher));
    })
}
