//! Pools of connections whose every wait has an end.

use std::time::Duration;

use anyhow::{Context, Result};
use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod, Runtime};
use tokio_postgres::{Config, NoTls};

/// A pool of this number of connections, which waits for one no longer than the given time.
///
/// # Errors
/// The URL cannot be read.
pub fn pool(database_url: &str, size: usize, wait: Duration) -> Result<Pool> {
    let config: Config = database_url.parse().context("read the database URL")?;
    let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let pool = Pool::builder(Manager::from_config(config, NoTls, recycling)).max_size(size);
    let wait = Some(wait);
    let pool = pool.runtime(Runtime::Tokio1).wait_timeout(wait).create_timeout(wait).recycle_timeout(wait);
    Ok(pool.build()?)
}
