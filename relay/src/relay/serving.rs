//! Serves one database, and waits while it is away or asleep.

use std::sync::Arc;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::Relay;
use crate::{
    backoff::AWAY,
    config::Config,
    error::{RelayError, error_chain},
    serve::{Database, databases::gauges},
};

/// Waits for the servers, then runs the loops until `stop`; again after each sleep. `first` is a
/// relay that has connected already.
pub(crate) async fn serve(
    mut first: Option<Relay>,
    config: Config,
    database: Arc<Database>,
    stop: CancellationToken,
) -> Result<(), RelayError> {
    loop {
        let relay = match first.take() {
            Some(relay) => relay,
            None => tokio::select! {
                relay = connect(&config, &database) => relay?,
                () = stop.cancelled() => return Ok(()),
            },
        };
        let (gauges, reader) = gauges();
        database.served(gauges);
        let ended = relay.deliver(reader, CancellationToken::new(), stop.clone().cancelled_owned()).await?;
        match ended {
            Some(asleep) => asleep.until_woken(&database, &stop).await,
            None => return Ok(()),
        }
        if stop.is_cancelled() {
            return Ok(());
        }
    }
}

async fn connect(config: &Config, database: &Database) -> Result<Relay, RelayError> {
    let (mut failures, mut said) = (0_u32, None);
    loop {
        let error = match Box::pin(Relay::connect_as(config.clone(), database.metrics.clone(), None)).await {
            Ok(relay) => {
                if said.is_some() {
                    info!("the servers of the relay are there");
                }
                return Ok(relay);
            }
            Err(error) if error.is_away() => error_chain(&error),
            Err(error) => return Err(error),
        };
        database.down(error.clone());
        if said.as_ref() != Some(&error) {
            warn!(error, "the relay cannot start yet; it is tried again until it does");
            said = Some(error);
        }
        sleep(AWAY.delay(failures)).await;
        failures = failures.saturating_add(1);
    }
}
