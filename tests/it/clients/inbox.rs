//! The Rust inboxes as some of the consumers: over tokio-postgres, and over each driver.

use std::{marker::PhantomData, time::Duration};

use diesel_async::{
    AsyncPgConnection,
    pooled_connection::{AsyncDieselConnectionManager, ManagerConfig, RecyclingMethod, deadpool},
};
use oncebox_diesel::Diesel;
use oncebox_inbox::{
    Answer, Builder, Consumer, Context, Exclusive, Handler, HandlerError, Inbox, LeasedContext,
    LeasedHandler, Order,
};
use oncebox_schema::Driver;
use oncebox_sea_orm::SeaOrm;
use oncebox_sqlx::Sqlx;
use oncebox_tests::{TestEnv, pool};
use sea_orm::DatabaseConnection;
use sqlx::{
    PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{
    functions,
    told::{AsTold, Reply, Returned, Told, Writes},
};

const CONNECTIONS: u32 = 4;
const WAIT: Duration = Duration::from_secs(10);
/// Settings that a user may choose for all sessions, and on which our statements must not depend.
const SPOILED: [&str; 11] = [
    "default_transaction_isolation=serializable",
    "search_path=public,oncebox",
    "bytea_output=escape",
    "standard_conforming_strings=off",
    "transform_null_equals=on",
    "datestyle=SQL,DMY",
    "intervalstyle=sql_standard",
    "timezone=Asia/Kathmandu",
    "extra_float_digits=-15",
    "plan_cache_mode=force_generic_plan",
    "statement_timeout=70s",
];

impl Handler for AsTold {
    type Message = Told;
    type Reply = Option<Reply>;

    async fn handle(&self, cx: Context<'_>, told: Told) -> Returned {
        Self::handle(self, &told, cx.message().delivery_count(), cx.transaction()).await
    }
}

/// The same over a driver.
struct Over<D>(AsTold, PhantomData<fn() -> D>);

struct Through<'a, D: Driver>(&'a mut D::Connection);

impl<D: Driver> Writes for Through<'_, D> {
    async fn write(&mut self, sql: &str) -> Result<(), HandlerError> {
        Ok(D::batch(self.0, sql).await?)
    }
}

impl<D: Driver> Handler<D> for Over<D> {
    type Message = Told;
    type Reply = Option<Reply>;

    async fn handle(&self, mut cx: Context<'_, D>, told: Told) -> Returned {
        let deliveries = cx.message().delivery_count();
        self.0.handle(&told, deliveries, Through::<D>(D::connection(cx.transaction_mut()))).await
    }
}

/// The same under a lease, with the transaction of `finish`. `finish` sends the statements of a
/// handler that has some, so such a handler ends there, as it is told.
struct UnderLease(AsTold);

impl LeasedHandler for UnderLease {
    type Message = Told;
    type Reply = Option<Reply>;

    async fn handle(&self, cx: &LeasedContext<'_>, told: Told) -> Returned {
        self.0.note(&told, cx.message().delivery_count()).await?;
        if told.has_statements() { Ok(told.reply()) } else { self.0.end(&told).await }
    }

    async fn finish(&self, cx: Context<'_>, _: &Answer<Option<Reply>>) -> Result<(), HandlerError> {
        let told: Told = serde_json::from_slice(cx.message().payload())?;
        self.0.write(&told, cx.transaction()).await?;
        if told.has_statements() { self.0.end(&told).await.map(drop) } else { Ok(()) }
    }
}

/// A consumer in this process.
pub(super) struct Running {
    shutdown: CancellationToken,
    tasks: JoinSet<Result<(), oncebox_inbox::Error>>,
}

impl Running {
    /// The consumer of this name, if it is one of these.
    pub(super) async fn start(env: &TestEnv, name: &str, settings: &str) -> Option<Self> {
        let (told, is_spoiled) = (AsTold::new(env).await, settings == "spoiled");
        let url = if is_spoiled { spoiled(env.database_url()) } else { env.database_url().to_owned() };
        let order = if settings == "strict" { Order::Strict } else { Order::PerProcess };
        let consumer =
            Consumer::new(env.jetstream().await, env.name(), "conform").concurrency(3).order(order);
        Some(match name {
            "rust" => {
                let inbox = configured(Inbox::builder(pool(&url, CONNECTIONS as usize, WAIT).unwrap()))
                    .build()
                    .unwrap();
                Self::spawn(|shutdown| consumer.run(inbox, told, shutdown))
            }
            "sqlx" => Self::over(consumer, Sqlx::from(sqlx(&url, is_spoiled)), told),
            "sea_orm" => {
                Self::over(consumer, SeaOrm::from(DatabaseConnection::from(sqlx(&url, is_spoiled))), told)
            }
            "diesel" => Self::over(consumer, Diesel::from(diesel(&url, is_spoiled)), told),
            "leased" => {
                let inbox = configured(Inbox::builder(pool(&url, CONNECTIONS as usize, WAIT).unwrap()));
                let leased = inbox.leased(Duration::from_secs(8)).build().unwrap();
                Self::spawn(|shutdown| consumer.run(leased, UnderLease(told), shutdown))
            }
            "functions" => {
                let (shutdown, mut tasks) = (CancellationToken::new(), JoinSet::new());
                tasks.spawn(functions::consume(env, told, shutdown.clone()).await);
                Self { shutdown, tasks }
            }
            _ => return None,
        })
    }

    fn over<D: Exclusive>(consumer: Consumer, driver: D, told: AsTold) -> Self {
        let inbox = configured(Inbox::<D>::over(driver)).build().unwrap();
        Self::spawn(|shutdown| consumer.run(inbox, Over::<D>(told, PhantomData), shutdown))
    }

    fn spawn<F>(run: impl FnOnce(CancellationToken) -> F) -> Self
    where
        F: Future<Output = Result<(), oncebox_inbox::Error>> + Send + 'static,
    {
        let (shutdown, mut tasks) = (CancellationToken::new(), JoinSet::new());
        tasks.spawn(run(shutdown.clone()));
        Self { shutdown, tasks }
    }

    /// An error if it has ended by itself.
    pub(super) fn check(&mut self) -> Result<(), String> {
        match self.tasks.try_join_next() {
            None => Ok(()),
            Some(ended) => Err(format!("the consumer ended: {ended:?}")),
        }
    }

    pub(super) async fn stop(mut self) {
        self.shutdown.cancel();
        self.tasks.join_next().await.expect("it has not ended before").unwrap().unwrap();
    }
}

fn configured<D: Driver>(builder: Builder<D>) -> Builder<D> {
    builder
        .scope("conform:test")
        .tenant_header("Tenant")
        .attempts_max(3)
        .backoff(Duration::from_millis(400), Duration::from_secs(2))
        .handler_timeout(Duration::from_secs(5))
}

pub(super) fn spoiled(url: &str) -> String {
    let separator = if url.contains('?') { '&' } else { '?' };
    let options: Vec<String> =
        SPOILED.iter().map(|set| format!("-c%20{}", set.replace('=', "%3D"))).collect();
    format!("{url}{separator}options={}", options.join("%20"))
}

/// Spoiled, nothing is prepared under a name that lasts, and connections are not tried before use.
fn sqlx(url: &str, is_spoiled: bool) -> PgPool {
    let options: PgConnectOptions = url.parse().unwrap();
    let options = if is_spoiled { options.statement_cache_capacity(0) } else { options };
    let pool = PgPoolOptions::new().max_connections(CONNECTIONS).test_before_acquire(!is_spoiled);
    pool.connect_lazy_with(options)
}

fn diesel(url: &str, is_spoiled: bool) -> deadpool::Pool<AsyncPgConnection> {
    let mut config = ManagerConfig::default();
    if is_spoiled {
        config.recycling_method = RecyclingMethod::Fast;
    }
    let manager = AsyncDieselConnectionManager::new_with_config(url, config);
    deadpool::Pool::builder(manager).max_size(CONNECTIONS as usize).build().unwrap()
}
