//! A database with everything that a service needs, of which each test gets a copy.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
};

use oncebox_schema::{Lanes, SchemaName, migrate_with_roles, script};
use tokio_postgres::{Client, Config};

use crate::{
    TestKitError, config,
    database::{Database, sql},
    url,
};

/// A database with the schema of Oncebox and your own tables. Each test gets a copy within a tenth
/// of a second.
///
/// It is made once for a server, and kept for the next run: its name has the hash of its
/// statements. Its copies may be used with any client of PostgreSQL.
///
/// ```no_run
/// # use oncebox_testkit::{Template, TestKitError};
/// # async fn place(pool: ()) {}
/// const TABLES: &str = "CREATE TABLE charge (id text PRIMARY KEY, cents bigint NOT NULL)";
///
/// #[tokio::test]
/// async fn an_order_is_charged() -> Result<(), TestKitError> {
///     let template = Template::make("postgres://postgres@127.0.0.1/postgres", &[TABLES]).await?;
///     template.database(async |url| {
///         // let pool = sqlx::PgPool::connect(&url).await.unwrap();
///     })
///     .await
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Template {
    config: Config,
    name: String,
}

impl Template {
    /// Makes it, or finds it. `url` names a database from which others can be made, as
    /// [`TestKit::new`](crate::TestKit::new) says; the statements make your tables.
    ///
    /// # Errors
    /// PostgreSQL refuses a statement, or cannot be reached.
    pub async fn make(url: &str, statements: &[&str]) -> Result<Self, TestKitError> {
        let config = config(url)?;
        let mut hasher = DefaultHasher::new();
        let schema = SchemaName::default();
        for step in script::steps(&schema, Lanes::default(), None, 0) {
            step.sql.hash(&mut hasher);
        }
        statements.hash(&mut hasher);
        let hash = hasher.finish();
        let template = Self { config, name: format!("oncebox_template_{hash:016x}") };
        let administering = async |client: &mut Client| {
            let lock = hash.cast_signed();
            client.execute(include_str!("template_lock.sql"), &[&lock]).await?;
            let found = client.query_opt(include_str!("is_there.sql"), &[&template.name]).await?;
            Ok(match found {
                Some(_) => Ok(()),
                None => template.fill(client, statements).await,
            })
        };
        let of = |error| TestKitError::Database("make the template", error);
        let database = template.administrator();
        // A lock belongs to a database, and others may have been given another URL.
        database.connected("postgres", administering).await.map_err(of)??;
        Ok(template)
    }

    /// Runs a test with the URL of a fresh copy, which is deleted afterwards; a test that panics
    /// keeps it.
    ///
    /// # Errors
    /// PostgreSQL cannot copy or delete.
    pub async fn database<T>(&self, test: impl AsyncFnOnce(String) -> T) -> Result<T, TestKitError> {
        let database = self.administrator();
        let copy = database.copy().await?;
        let result = test(self.url_of(&copy.0)).await;
        database.delete(copy).await?;
        Ok(result)
    }

    /// The template itself, for [`TestKit`](crate::TestKit), which copies it. Do not connect to it
    /// yourself.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_of(&self.name)
    }

    fn url_of(&self, database: &str) -> String {
        let host = match self.config.get_hosts().first() {
            Some(tokio_postgres::config::Host::Tcp(host)) => host.as_str(),
            _ => "127.0.0.1",
        };
        url(&self.config, host, self.config.get_ports().first().copied().unwrap_or(5432), database)
    }

    /// Under another name until it is whole: who makes it may be killed.
    async fn fill(&self, client: &Client, statements: &[&str]) -> Result<(), TestKitError> {
        let part = format!("{}_part", self.name);
        let of = |error| TestKitError::Database("make the template", error);
        let execute = async |text: &str| {
            let text = sql(text).replace("{copy}", &part).replace("{template}", "template1");
            client.batch_execute(&text.replace("{name}", &self.name)).await.map_err(of)
        };
        execute(include_str!("drop.sql")).await?;
        execute(include_str!("copy.sql")).await?;
        let filling = async |client: &mut Client| {
            // All databases of a server share the roles; those of a template would outlive it.
            let roles = "oncebox".parse().ok();
            let schema = SchemaName::default();
            if let Err(error) = migrate_with_roles(client, &schema, Lanes::default(), roles.as_ref()).await {
                return Ok(Err(TestKitError::Invalid(format!("migrate the template: {error}"))));
            }
            for statement in statements {
                client.batch_execute(statement).await?;
            }
            Ok(Ok(()))
        };
        match self.administrator().connected(&part, filling).await.map_err(of) {
            Ok(Ok(())) => execute(include_str!("rename.sql")).await,
            Ok(Err(error)) | Err(error) => {
                execute(include_str!("drop.sql")).await?;
                Err(error)
            }
        }
    }

    fn administrator(&self) -> Database {
        let mut config = self.config.clone();
        config.dbname(&self.name);
        Database::new(config, &SchemaName::default(), BTreeMap::new())
    }
}
