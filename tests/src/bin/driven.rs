//! A consumer through a driver of PostgreSQL, as a process that tests kill.
//! Usage: driven DRIVER STREAM, with `DATABASE_URL` and `NATS_URL`.

use std::{env, time::Duration};

use anyhow::{Context, Result, bail};
use async_nats::jetstream;
use diesel_async::{
    AsyncPgConnection,
    pooled_connection::{AsyncDieselConnectionManager, deadpool::Pool},
};
use oncebox_diesel::Diesel;
use oncebox_inbox::{Consumer, Error, Exclusive, Inbox};
use oncebox_sea_orm::SeaOrm;
use oncebox_sqlx::Sqlx;
use oncebox_tests::driven::{Effect, SCOPE};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

const CONCURRENCY: usize = 4;
const CONNECTIONS: u32 = 4;
/// Between two starts of the consumer.
const RESTART: Duration = Duration::from_millis(100);

#[tokio::main]
async fn main() -> Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let mut arguments = env::args().skip(1);
    let (driver, stream) = (arguments.next().context("DRIVER")?, arguments.next().context("STREAM")?);
    let url = variable("DATABASE_URL")?;
    match driver.as_str() {
        "sqlx" => {
            let pool =
                sqlx::postgres::PgPoolOptions::new().max_connections(CONNECTIONS).connect_lazy(&url)?;
            consume(Sqlx::from(pool), stream).await
        }
        "SeaORM" => {
            let mut options = sea_orm::ConnectOptions::new(url);
            options.max_connections(CONNECTIONS).connect_lazy(true);
            consume(SeaOrm::from(sea_orm::Database::connect(options).await?), stream).await
        }
        "diesel" => {
            let manager = AsyncDieselConnectionManager::<AsyncPgConnection>::new(url);
            let pool = Pool::builder(manager).max_size(CONNECTIONS as usize).build()?;
            consume(Diesel::from(pool), stream).await
        }
        other => bail!("no driver is called {other}"),
    }
}

#[expect(clippy::disallowed_methods, reason = "a program is told its servers by its environment")]
fn variable(name: &str) -> Result<String> {
    env::var(name).with_context(|| format!("{name} is not set"))
}

async fn consume<D: Exclusive>(driver: D, stream: String) -> Result<()> {
    let mut asked = signal(SignalKind::terminate())?;
    let jetstream = jetstream::new(async_nats::connect(variable("NATS_URL")?).await?);
    let short = Duration::from_millis(50);
    let inbox = Inbox::<D>::over(driver).scope(SCOPE).single_tenant().backoff(short, short * 4).build()?;
    let shutdown = CancellationToken::new();
    let consumer =
        Consumer::new(jetstream, stream, "d").concurrency(CONCURRENCY).ack_wait(Duration::from_secs(2));
    let running = async {
        loop {
            let run = consumer.clone().run(inbox.clone(), Effect::<D>::new(), shutdown.clone());
            match run.await {
                // Cut off while it registered its scope: a service is started again then.
                Err(Error::Unavailable(..)) => tokio::time::sleep(RESTART).await,
                ended => return ended,
            }
        }
    };
    let mut running = std::pin::pin!(running);
    tokio::select! {
        ended = &mut running => return Ok(ended?),
        _ = asked.recv() => shutdown.cancel(),
    }
    Ok(running.await?)
}
