//! Test harness and integration tests on real servers.
//!
//! A test asks for a [`TestEnv`] and gets a database and a stream of its own on a PostgreSQL and a
//! nats-server that the test binary shares; one that kills or restarts servers starts its own
//! [`Postgres`] and [`Nats`]. Nothing has to be set up, and nothing is left: a guardian process
//! ends each server and deletes its directory when the process that started it dies, by any means.
//!
//! ```no_run
//! use oncebox_tests::TestEnv;
//!
//! # async fn example() -> Result<(), tokio_postgres::Error> {
//! let env = TestEnv::new().await;
//! let client = env.pg().await;
//! let enqueue = env.schema.sql("SELECT {schema}.enqueue_json($1, $2, '{}')");
//! client.execute(&enqueue, &[&"4711", &env.subject("orders.placed")]).await?;
//! # Ok(())
//! # }
//! ```

mod account;
pub mod adversity;
mod browser;
mod cluster;
pub mod driven;
mod env;
mod eventually;
mod find;
mod guardian;
mod http;
mod leaf;
mod log;
mod nats;
mod patience;
mod pgbouncer;
mod pool;
mod postgres;
mod program;
mod prometheus;
mod proxy;
#[cfg(doctest)]
mod readme;
mod recording;
mod redis;
mod settled;
pub mod traffic;
mod verdict;

pub use account::{is_root, public_directory};
pub use browser::{Browser, browser_programs};
pub use cluster::NatsCluster;
pub use env::{TestEnv, database_url};
pub use eventually::{eventually, within};
pub use find::{
    installed_servers, nats_server_binary, pgbouncer_binary, postgres_directory, prometheus_directory,
    redis_server_binary,
};
pub use http::http_get;
pub use leaf::Leaf;
pub use log::Log;
pub use nats::Nats;
pub use patience::Patience;
pub use pgbouncer::PgBouncer;
pub use pool::pool;
pub use postgres::{Postgres, Stop, tail};
pub use program::{Program, diagnosed, http_address, oncebox, program_file};
pub use prometheus::Prometheus;
pub use proxy::Proxy;
pub use recording::Recording;
pub use redis::Redis;
pub use settled::is_settled;
pub use verdict::{Counts, Placed};
