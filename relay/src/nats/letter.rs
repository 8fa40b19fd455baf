//! Sending a dead letter back to its stream.

use std::{error::Error, time::Duration};

use oncebox_connect::nats::Connection;
use tokio::time::timeout;

use crate::delivery::{Letter, letter::headers};

/// How long JetStream may take to acknowledge one message.
const ACK_TIMEOUT: Duration = Duration::from_secs(10);

impl Letter {
    /// Publishes it; the stream has stored it when this returns.
    ///
    /// # Errors
    /// NATS refused or is away, or the message cannot be sent.
    pub async fn publish(self, connection: &Connection) -> Result<(), Box<dyn Error + Send + Sync>> {
        if connection.over.is_cancelled() {
            return Err("the connection to NATS is gone".into());
        }
        let headers = headers(&self)?;
        let size = connection.client.server_info().max_payload;
        if self.payload.len() > size {
            return Err(format!("{} bytes; the server takes {size}", self.payload.len()).into());
        }
        let context = connection.jetstream(ACK_TIMEOUT);
        let publishing = async {
            let sent = context.publish_with_headers(self.subject, headers, self.payload.into()).await?;
            sent.await
        };
        timeout(ACK_TIMEOUT, publishing).await??;
        Ok(())
    }
}
