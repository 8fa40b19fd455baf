//! Whether PostgreSQL's disk is full: it answers all questions then, and takes no message.

use oncebox_connect::error::RelayError;
use tokio_postgres::Client;

use crate::failed;

const DISK: &str = include_str!("sql/disk.sql");
const SETTINGS: &str = include_str!("sql/status_settings.sql");
/// So that the file lies where the database does, however small it is.
const SPILLS: &str = "SET LOCAL work_mem = '64kB'; SET LOCAL temp_tablespaces = ''";

/// Says so in the words of PostgreSQL. `None` for any other answer: a limit of temporary files
/// forbids the question, and an outage is told by all others.
pub(crate) async fn full_disk(client: &mut Client) -> Option<String> {
    match write(client).await.map_err(failed("write a temporary file")) {
        Err(RelayError::Postgres(error)) => error.refused_writes(),
        _ => None,
    }
}

async fn write(client: &mut Client) -> Result<(), tokio_postgres::Error> {
    let transaction = client.transaction().await?;
    transaction.batch_execute(SETTINGS).await?;
    transaction.batch_execute(SPILLS).await?;
    transaction.query_typed(DISK, &[]).await?;
    Ok(())
}
