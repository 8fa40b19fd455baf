//! The inbox over other drivers, against the one over tokio-postgres, and each against the bare
//! transaction of its own driver; and those transactions against the one of tokio-postgres, which
//! shows the driver's part of the difference.
//!
//! All handle the same messages, one at a time each, sixteen in flight over as many connections,
//! with one awaited INSERT: through `Inbox::run`, since only the one over tokio-postgres claims the
//! next key after a commit.

use std::{
    marker::PhantomData,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use diesel_async::{
    AnsiTransactionManager, AsyncPgConnection, TransactionManager,
    pooled_connection::{AsyncDieselConnectionManager, ManagerConfig, RecyclingMethod, deadpool::Pool},
};
use oncebox_diesel::Diesel;
use oncebox_inbox::{Context, Exclusive, Handler, HandlerError, Inbox, Outcome};
use oncebox_schema::{Driver, Value};
use oncebox_sea_orm::SeaOrm;
use oncebox_sqlx::Sqlx;
use sqlx::postgres::PgPoolOptions;

use crate::{
    config::Config,
    inbox::{self, Effect, Order, handled, message},
    report::Report,
    servers::Servers,
    statistics::median,
    workers::{Rates, Side, alternate},
};

const IN_FLIGHT: usize = 16;
const CONNECTIONS: u32 = 16;
const BARE: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";
/// How long to wait for a connection.
const WITHIN: Duration = Duration::from_secs(5);
const EFFECT: &str = include_str!("sql/effect_through.sql");

/// Takes all rounds.
pub(crate) async fn measure(servers: &Servers, config: &Config, report: &mut Report) -> anyhow::Result<()> {
    let mut rounds: [[Vec<Rates>; 3]; 3] = Default::default();
    for _ in 0..config.rounds {
        for (number, rounds) in rounds.iter_mut().enumerate() {
            let database = servers.migrated().await?;
            servers.session(&database).await?.batch_execute(include_str!("sql/effect_table.sql")).await?;
            let url = servers.database_url(&database);
            let rates = match number {
                0 => take(servers, config, &database, sqlx(&url)?).await,
                1 => {
                    let pool = sea_orm::SqlxPostgresConnector::from_sqlx_postgres_pool(pool(&url)?);
                    take(servers, config, &database, SeaOrm::from(pool)).await
                }
                _ => take(servers, config, &database, diesel(&url)?).await,
            }?;
            for (rounds, rates) in rounds.iter_mut().zip(rates) {
                rounds.push(rates);
            }
            servers.drop_database(&database).await?;
        }
    }
    let names = ["sqlx", "sea_orm", "diesel"];
    for (name, [over_tokio, over_bare, bare]) in names.into_iter().zip(&rounds) {
        add(report, &format!("driver_{name}_ratio"), over_tokio);
        add(report, &format!("driver_{name}_bare_ratio"), over_bare);
        add(report, &format!("driver_{name}_alone_ratio"), bare);
    }
    Ok(())
}

fn add(report: &mut Report, key: &str, rounds: &[Rates]) {
    let reference = median(rounds.iter().map(|round| round.reference));
    let measured = median(rounds.iter().map(|round| round.measured));
    let behind = format!("{measured:.0}/s, reference {reference:.0}/s");
    report.add(key, median(rounds.iter().map(|round| round.ratio())), behind);
}

fn pool(url: &str) -> anyhow::Result<sqlx::PgPool> {
    let options = PgPoolOptions::new().max_connections(CONNECTIONS).test_before_acquire(false);
    options.connect_lazy(url).context("build the pool")
}

fn sqlx(url: &str) -> anyhow::Result<Sqlx> {
    Ok(Sqlx::from(pool(url)?))
}

fn diesel(url: &str) -> anyhow::Result<Diesel> {
    let mut fast = ManagerConfig::default();
    fast.recycling_method = RecyclingMethod::Fast;
    let manager = AsyncDieselConnectionManager::<AsyncPgConnection>::new_with_config(url, fast);
    let pool = Pool::builder(manager).max_size(IN_FLIGHT).build().context("build the pool")?;
    Ok(Diesel::from(pool))
}

/// The inbox over a driver, against that over tokio-postgres, and against the driver's own
/// transaction; and that against the transaction of tokio-postgres.
async fn take<D: Commits>(
    servers: &Servers,
    config: &Config,
    database: &str,
    driver: D,
) -> anyhow::Result<[Rates; 3]> {
    let sent = Arc::new(AtomicU64::new(0));
    let tokio = Inbox::builder(inbox::pool(servers, database, IN_FLIGHT)?);
    let tokio = Arc::new(Tokio {
        inbox: tokio.scope("bench:drivers").single_tenant().build()?,
        sent: Arc::clone(&sent),
    });
    let inbox = Inbox::<D>::over(driver.clone()).scope("bench:drivers").single_tenant().build()?;
    inbox.check().await?;
    let driven = Arc::new(Driven { inbox, sent: Arc::clone(&sent) });
    let bare = Arc::new(Bare { driver, sent });
    let bare_tokio = Arc::new(inbox::Bare::new(inbox::pool(servers, database, IN_FLIGHT)?));
    let duration = config.duration / 6;
    let over_tokio = alternate(duration, IN_FLIGHT, &tokio, &driven).await?;
    let over_bare = alternate(duration, IN_FLIGHT, &bare, &driven).await?;
    let alone = alternate(duration, IN_FLIGHT, &bare_tokio, &bare).await?;
    tracing::info!("{}: tokio-postgres {over_tokio:?}, bare {over_bare:?}, alone {alone:?}", D::NAME);
    Ok([over_tokio, over_bare, alone])
}

/// `Inbox::run` over tokio-postgres.
struct Tokio {
    inbox: Inbox,
    sent: Arc<AtomicU64>,
}

impl Side for Tokio {
    async fn once(&self, worker: usize) -> anyhow::Result<()> {
        let received = message(self.sent.fetch_add(1, Ordering::Relaxed), worker)?;
        handled(&self.inbox.run(&Effect::Awaited, &received).await?)
    }
}

/// `Inbox::run` over a driver.
struct Driven<D: Driver> {
    inbox: Inbox<D>,
    sent: Arc<AtomicU64>,
}

impl<D: Driver> Side for Driven<D> {
    async fn once(&self, worker: usize) -> anyhow::Result<()> {
        let received = message(self.sent.fetch_add(1, Ordering::Relaxed), worker)?;
        handled(&self.inbox.run(&Insert::<D>(PhantomData), &received).await?)
    }
}

/// A driver with its own COMMIT.
trait Commits: Exclusive {
    fn commit(transaction: Self::Transaction) -> impl Future<Output = anyhow::Result<()>> + Send;
}

impl Commits for Sqlx {
    async fn commit(transaction: Self::Transaction) -> anyhow::Result<()> {
        Ok(transaction.commit().await?)
    }
}

impl Commits for SeaOrm {
    async fn commit(transaction: Self::Transaction) -> anyhow::Result<()> {
        Ok(transaction.commit().await?)
    }
}

impl Commits for Diesel {
    async fn commit(mut transaction: Self::Transaction) -> anyhow::Result<()> {
        AnsiTransactionManager::commit_transaction(&mut *transaction).await?;
        transaction.finish();
        Ok(())
    }
}

/// The transaction that a consumer without an inbox would make.
struct Bare<D> {
    driver: D,
    sent: Arc<AtomicU64>,
}

impl<D: Commits> Side for Bare<D> {
    async fn once(&self, worker: usize) -> anyhow::Result<()> {
        let received = message(self.sent.fetch_add(1, Ordering::Relaxed), worker)?;
        let order: Order = serde_json::from_slice(received.payload())?;
        let begun = self.driver.begin(WITHIN, BARE, &[], false).await;
        let (mut transaction, _) = begun.map_err(|error| anyhow::anyhow!(error))?;
        insert::<D>(&mut transaction, &order).await?;
        D::commit(transaction).await
    }
}

/// The handler.
struct Insert<D>(PhantomData<fn() -> D>);

impl<D: Driver> Handler<D> for Insert<D> {
    type Message = Order;
    type Reply = ();

    async fn handle(&self, mut cx: Context<'_, D>, order: Order) -> Result<Outcome<()>, HandlerError> {
        insert::<D>(cx.transaction_mut(), &order).await?;
        Ok(Outcome::done(()))
    }
}

async fn insert<D: Driver>(transaction: &mut D::Transaction, order: &Order) -> Result<(), D::Error> {
    let values = [Value::Integer(Some(order.customer)), Value::Integer(Some(order.cents))];
    D::query(D::connection(transaction), EFFECT, &values, false).await.map(drop)
}
