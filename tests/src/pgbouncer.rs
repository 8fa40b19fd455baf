//! A `PgBouncer` of a test's own.

use std::{
    ffi::OsString,
    fs,
    os::unix::fs::{PermissionsExt, chown},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::NoTls;

use crate::{
    account::Account,
    find,
    guardian::Guardian,
    postgres::{free_port, tail},
};

const START_DEADLINE: Duration = Duration::from_secs(30);
const PORT_ATTEMPTS: u32 = 5;

/// A `PgBouncer` in transaction mode on a free loopback port, before a PostgreSQL server; every
/// client may log in as its superuser `postgres`, to every database.
///
/// It ends, and its directory is deleted, when this value is dropped and when this process dies by
/// any means.
#[derive(Debug)]
pub struct PgBouncer {
    guardian: Guardian,
    server: String,
    backends: usize,
    version: (u32, u32),
    mode: &'static str,
    port: u16,
}

impl PgBouncer {
    /// Starts one with this number of backends for each database; `url` is any database of the
    /// server. `None` when there is no program and `ONCEBOX_TEST_PGBOUNCER` does not name one.
    ///
    /// # Errors
    /// `ONCEBOX_TEST_PGBOUNCER` names no file, or it does not start; the error has the end of its
    /// log.
    pub async fn start(url: &str, backends: usize) -> Result<Option<Self>> {
        Self::start_in(url, backends, "transaction").await
    }

    /// Like [`PgBouncer::start`], with its `pool_mode`.
    ///
    /// # Errors
    /// As for `start`.
    pub async fn start_in(url: &str, backends: usize, mode: &'static str) -> Result<Option<Self>> {
        let Some(binary) = find::pgbouncer_binary()? else { return Ok(None) };
        let version = find::version(&binary).context("pgbouncer --version")?;
        let config: tokio_postgres::Config = url.parse().context("the server's URL")?;
        let Some(tokio_postgres::config::Host::Tcp(host)) = config.get_hosts().first() else {
            bail!("the server's URL names no host");
        };
        let port = config.get_ports().first().copied().unwrap_or(5432);
        let password = config.get_password().map(String::from_utf8_lossy);
        let password = password.map(|text| format!(" password='{text}'")).unwrap_or_default();
        let user = config.get_user().unwrap_or("postgres");
        let server = format!("host={host} port={port} user={user}{password}");
        // It refuses to run as root.
        let guardian = Guardian::new("pgbouncer", "TERM", Account::for_servers(), |directory| {
            vec![binary.into_os_string(), OsString::from(directory.join("pgbouncer.ini"))]
        })?;
        let mut pooler = Self { guardian, server, backends, version, mode, port: 0 };
        for _ in 0..PORT_ATTEMPTS {
            // If another process takes the port before the server does, the server ends, and
            // another port is tried.
            pooler.port = free_port()?;
            pooler.configure()?;
            pooler.guardian.start().await?;
            if pooler.is_ready().await? {
                return Ok(Some(pooler));
            }
        }
        bail!("PgBouncer found no free port in {PORT_ATTEMPTS} attempts")
    }

    /// `postgres://postgres@127.0.0.1:PORT/database`.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// Whether it knows of prepared statements: from 1.24 on by default.
    #[must_use]
    pub fn carries_prepared_statements(&self) -> bool {
        self.version >= (1, 24)
    }

    /// Its log.
    #[must_use]
    pub fn log(&self) -> String {
        self.guardian.log()
    }

    fn configure(&self) -> Result<()> {
        let text = format!(
            "[databases]\n* = {}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {}\nunix_socket_dir =\n\
             auth_type = any\npool_mode = {}\ndefault_pool_size = {}\nmax_client_conn = 200\n",
            self.server, self.port, self.mode, self.backends
        );
        let path = self.guardian.directory().join("pgbouncer.ini");
        fs::write(&path, text).context("write pgbouncer.ini")?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        if let Some(account) = Account::for_servers() {
            chown(&path, Some(account.user), Some(account.group))?;
        }
        Ok(())
    }

    /// Waits until a statement gets through. False when it ended because the port was taken.
    async fn is_ready(&mut self) -> Result<bool> {
        let deadline = Instant::now() + START_DEADLINE;
        let url = self.url("postgres");
        while Instant::now() < deadline {
            let connecting = timeout(Duration::from_secs(5), tokio_postgres::connect(&url, NoTls)).await;
            if let Ok(Ok((client, connection))) = connecting {
                let asking = async move { client.simple_query("SELECT").await };
                let (answer, _) = tokio::join!(asking, timeout(Duration::from_secs(5), connection));
                if answer.is_ok() && !self.guardian.has_ended() {
                    return Ok(true);
                }
            }
            if self.guardian.has_ended() {
                let log = self.guardian.log();
                if tail(&log).contains("ddress already in use") {
                    return Ok(false);
                }
                bail!("PgBouncer ended while it started:\n{}", tail(&log));
            }
            sleep(Duration::from_millis(20)).await;
        }
        bail!("PgBouncer does not answer on port {}:\n{}", self.port, tail(&self.guardian.log()))
    }
}
