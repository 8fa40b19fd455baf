//! The test kit with handlers over other drivers, on a template of its own.

use std::time::Duration;

use oncebox_inbox::{Driver, Handler, HandlerError, Outcome, Received};
use oncebox_outbox::{Message, Outbox};
use oncebox_sea_orm::SeaOrm;
use oncebox_sqlx::Sqlx;
use oncebox_testkit::{Scenario, Scratch, Template, TestKit, TestKitError};
use oncebox_tests::TestEnv;
use sea_orm::{ConnectionTrait as _, DatabaseBackend, Statement};
use sqlx::{Connection as _, PgConnection, PgPool, Row as _, postgres::PgPoolOptions};
use tokio::time::Instant;

const TABLES: &str = "CREATE TABLE charge (key text, cents bigint)";
const CHARGE: &str = "INSERT INTO charge VALUES ($1, $2)";
/// Of an installation in a first run, on a slow machine.
const ONCE: Duration = Duration::from_secs(20);

async fn template(env: &TestEnv) -> Template {
    Template::make(env.database_url(), &[TABLES, "INSERT INTO charge VALUES ('before', 1)"]).await.unwrap()
}

fn kit(template: &Template) -> TestKit {
    let charge = |key| Received::new("orders.placed", "7").header("Idempotency-Key", key);
    TestKit::new(template.url()).message(charge("a")).message(charge("b"))
}

fn pool(scratch: &Scratch) -> PgPool {
    PgPoolOptions::new().max_connections(3).connect_lazy(scratch.url()).unwrap()
}

fn inbox<D: Driver>(pool: impl Into<D>) -> oncebox_inbox::Inbox<D> {
    oncebox_inbox::Inbox::over(pool).scope("shop:charge").single_tenant().build().unwrap()
}

/// Charges, and enqueues a receipt; on a connection of its own if it has a URL.
struct Charge(Option<String>);

impl Handler<Sqlx> for Charge {
    type Message = i64;
    type Reply = ();

    async fn handle(
        &self,
        mut cx: oncebox_sqlx::Context<'_>,
        cents: i64,
    ) -> Result<Outcome<()>, HandlerError> {
        let (key, receipt) = (cx.key().as_str().to_owned(), cx.key().step("receipt")?);
        let charge = sqlx::query(CHARGE).bind(key).bind(cents);
        match &self.0 {
            Some(url) => charge.execute(&mut PgConnection::connect(url).await?).await?,
            None => charge.execute(&mut **cx.transaction()).await?,
        };
        let receipt = Message::json(receipt, "receipts.made".parse()?, &cents)?;
        Outbox::default().enqueue(cx.transaction(), &receipt).await?;
        Ok(Outcome::done(()))
    }
}

/// Each statement and each COMMIT of sqlx is a place to die.
#[tokio::test]
async fn a_handler_over_sqlx_is_killed_at_each_statement() {
    let env = TestEnv::new().await;
    let template = template(&env).await;
    let sound = kit(&template).check(|scratch| (inbox::<Sqlx>(pool(scratch)), Charge(None))).await.unwrap();
    sound.assert_once();
    // BEGIN, claim, the two of the handler, COMMIT, of each message.
    assert!(sound.statements() >= 10, "{sound}");

    let aside = |scratch: &Scratch| (inbox::<Sqlx>(pool(scratch)), Charge(Some(scratch.url().to_owned())));
    let report = kit(&template).check(aside).await.unwrap();
    let kills = report.failures().iter().filter(|failed| matches!(failed.scenario, Scenario::Kill { .. }));
    assert!(kills.count() > 0 && report.to_string().contains("public.charge: 1 too many"), "{report}");
}

struct Orm;

impl Handler<SeaOrm> for Orm {
    type Message = i64;
    type Reply = ();

    async fn handle(
        &self,
        mut cx: oncebox_sea_orm::Context<'_>,
        cents: i64,
    ) -> Result<Outcome<()>, HandlerError> {
        let values = [cx.key().as_str().into(), cents.into()];
        let charge = Statement::from_sql_and_values(DatabaseBackend::Postgres, CHARGE, values);
        cx.transaction().execute_raw(charge).await?;
        Ok(Outcome::done(()))
    }
}

#[tokio::test]
async fn a_handler_over_sea_orm_is_killed_at_each_commit() {
    let env = TestEnv::new().await;
    let kit = kit(&template(&env).await).kills(oncebox_testkit::Kills::Commits);
    let orm = |scratch: &Scratch| {
        let pool = sea_orm::SqlxPostgresConnector::from_sqlx_postgres_pool(pool(scratch));
        (inbox::<SeaOrm>(pool), Orm)
    };
    let report = kit.check(orm).await.unwrap();
    report.assert_once();
    assert_eq!(report.statements(), 2, "{report}");
}

/// Made once, also by many at the same time, whole; a copy belongs to one test, and is gone after
/// it.
#[tokio::test]
async fn a_template_is_made_once_and_copied_for_each_test() {
    let env = TestEnv::new().await;
    let own = format!("CREATE TABLE {} (id int)", env.name());
    let begun = Instant::now();
    let all = futures_util::future::join_all((0..4).map(async |_| {
        let template = Template::make(env.database_url(), &[&own]).await.unwrap();
        template.url()
    }));
    let all = all.await;
    let made = begun.elapsed();
    assert!(made < ONCE && all.iter().all(|url| *url == all[0]), "{all:?}");

    let template = Template::make(env.database_url(), &[&own]).await.unwrap();
    let used = template.database(async |url| {
        let pool = PgPool::connect(&url).await.unwrap();
        let mut transaction = pool.begin().await.unwrap();
        let message = Message::bytes("k".parse().unwrap(), "a.b".parse().unwrap(), "1");
        Outbox::default().enqueue(&mut transaction, &message).await.unwrap();
        transaction.commit().await.unwrap();
        let count = format!("SELECT count(*) FROM {}", env.name());
        let rows: i64 = sqlx::query(sqlx::AssertSqlSafe(count)).fetch_one(&pool).await.unwrap().get(0);
        pool.close().await;
        (url, rows)
    });
    let (url, rows) = used.await.unwrap();
    assert_eq!(rows, 0);
    let gone = PgConnection::connect(&url).await.unwrap_err();
    assert!(gone.to_string().contains("does not exist"), "{gone}");
    let fresh = template.database(async |url| {
        let mut fresh = PgConnection::connect(&url).await.unwrap();
        let count = sqlx::query("SELECT count(*) FROM oncebox.message").fetch_one(&mut fresh).await;
        count.unwrap().get::<i64, _>(0)
    });
    assert_eq!(fresh.await.unwrap(), 0);
    let url = template.url();
    let (_, name) = url.rsplit_once('/').unwrap();
    env.pg().await.batch_execute(&format!("DROP DATABASE {name}")).await.unwrap();
}

/// A statement that fails leaves no half of a template, which the next run would take.
#[tokio::test]
async fn a_template_that_cannot_be_made_is_made_anew() {
    let env = TestEnv::new().await;
    let (table, wrong) = (format!("CREATE TABLE {} (id int)", env.name()), "CREATE TABLE nonsense (");
    for _ in 0..2 {
        let error = Template::make(env.database_url(), &[&table, wrong]).await.unwrap_err();
        assert!(matches!(error, TestKitError::Database("make the template", _)), "{error}");
    }
}
