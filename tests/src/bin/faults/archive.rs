//! A database that is restored from a backup while relays serve it: its stream knows messages that
//! it has forgotten, and some of its messages are set aside.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use async_nats::jetstream;
use oncebox_tests::{pool, traffic};
use tempfile::TempDir;
use tokio::{process::Command, time::sleep};

use crate::{
    fleet::{ARCHIVE, ARCHIVED, url_of},
    stage::POOL_WAIT,
};

/// The committed messages; those of a subject without a stream are set aside.
pub(crate) const TABLE: &str = "CREATE TABLE placed (key text PRIMARY KEY, is_stored bool NOT NULL)";
pub(crate) const SUBJECTS: &str = "archive.>";
const STORED: &str = "archive.message";
pub(crate) const NOWHERE: &str = "nowhere.archive";
const COMING: &str = "archive_coming";
const LOOK: Duration = Duration::from_millis(200);
const LOOKS_MAX: usize = 250;

#[derive(Debug)]
pub(crate) struct Archive {
    /// Of a database of the same server.
    server_url: String,
    nats_url: String,
    /// Where the programs of PostgreSQL are.
    programs: PathBuf,
    directory: TempDir,
}

impl Archive {
    pub(crate) fn new(server_url: String, nats_url: String, programs: PathBuf) -> Result<Self> {
        Ok(Self { server_url, nats_url, programs, directory: TempDir::new()? })
    }

    /// Backs the database up, commits more, and puts the backup in its place; all that it knows
    /// then is stored.
    pub(crate) async fn restore_once(&self, round: usize) -> Result<()> {
        if self.backup().exists() && !self.is_there().await {
            // A fault came between the two databases the last time.
            self.bring_back().await?;
        }
        self.enqueue(&format!("kept-{round}"), STORED, 10).await?;
        self.enqueue(&format!("aside-{round}"), NOWHERE, 3).await?;
        self.back_up().await?;
        self.enqueue(&format!("forgotten-{round}"), STORED, 5).await?;
        self.all_stored().await?;
        self.bring_back().await?;
        self.enqueue(&format!("after-{round}"), STORED, 10).await?;
        self.all_stored().await
    }

    /// In the end, in calm: whether the relays serve it, and each message that is set aside is
    /// whole.
    pub(crate) async fn judge(&self) -> Result<()> {
        if !self.is_there().await {
            self.bring_back().await?;
        }
        self.enqueue("last", STORED, 10).await?;
        self.all_stored().await?;
        let sql = "SELECT count(*) FROM placed AS p
                   LEFT JOIN oncebox.parked AS o ON o.key = p.key AND o.payload = convert_to(p.key, 'UTF8')
                   WHERE NOT p.is_stored AND o.key IS NULL";
        let torn: i64 = self.client().await?.query_one(sql, &[]).await?.get(0);
        ensure!(
            torn == 0,
            "{torn} messages of the restored database that were set aside are gone, or not whole"
        );
        Ok(())
    }

    async fn client(&self) -> Result<deadpool_postgres::Object> {
        Ok(pool(&url_of(&self.server_url, ARCHIVE), 1, POOL_WAIT)?.get().await?)
    }

    async fn is_there(&self) -> bool {
        let Ok(client) = self.client().await else { return false };
        client.query_one("SELECT count(*) FROM placed", &[]).await.is_ok()
    }

    async fn enqueue(&self, prefix: &str, subject: &str, count: i64) -> Result<()> {
        let sql = "WITH n AS (SELECT $1 || '-' || n AS key FROM generate_series(1, $3::bigint) AS n),
                   p AS (INSERT INTO placed SELECT key, $2 <> $4 FROM n ON CONFLICT (key) DO NOTHING)
                   SELECT oncebox.enqueue(key, $2, convert_to(key, 'UTF8')) FROM n";
        self.client().await?.query(sql, &[&prefix, &subject, &count, &NOWHERE]).await?;
        Ok(())
    }

    /// Waits until the stream has all that the database knows.
    async fn all_stored(&self) -> Result<()> {
        let jetstream = jetstream::new(async_nats::connect(&self.nats_url).await?);
        let sql = "SELECT key FROM placed WHERE is_stored";
        let mut missing = Vec::new();
        for _ in 0..LOOKS_MAX {
            let stream = jetstream.get_stream(ARCHIVED).await?;
            let stored = traffic::stream_keys(&stream, SUBJECTS).await?;
            let rows = self.client().await?.query(sql, &[]).await?;
            missing = rows.iter().map(|row| row.get::<_, String>(0)).collect();
            missing.retain(|key| !stored.contains(key));
            if missing.is_empty() {
                return Ok(());
            }
            sleep(LOOK).await;
        }
        missing.truncate(5);
        anyhow::bail!("of the restored database the stream has not {missing:?}")
    }

    fn backup(&self) -> PathBuf {
        self.directory.path().join("backup")
    }

    /// One that a fault interrupts leaves the backup before.
    async fn back_up(&self) -> Result<()> {
        let (file, backup) = (self.directory.path().join("new"), self.backup());
        self.run("pg_dump", &["--format=custom", "--file", text(&file)?, &url_of(&self.server_url, ARCHIVE)])
            .await?;
        Ok(std::fs::rename(file, backup)?)
    }

    /// The backup takes the database's place, as docs/backup.md has it.
    async fn bring_back(&self) -> Result<()> {
        let admin = pool(&self.server_url, 1, POOL_WAIT)?.get().await?;
        admin.batch_execute(&format!("DROP DATABASE IF EXISTS {COMING} WITH (FORCE)")).await?;
        admin.batch_execute(&format!("CREATE DATABASE {COMING}")).await?;
        let url = url_of(&self.server_url, COMING);
        self.run("pg_restore", &["--exit-on-error", "--dbname", &url, text(&self.backup())?]).await?;
        admin.batch_execute(&format!("DROP DATABASE IF EXISTS {ARCHIVE} WITH (FORCE)")).await?;
        admin.batch_execute(&format!("ALTER DATABASE {COMING} RENAME TO {ARCHIVE}")).await?;
        Ok(())
    }

    async fn run(&self, program: &str, arguments: &[&str]) -> Result<()> {
        let mut command = Command::new(self.programs.join(program));
        let output = command.args(arguments).kill_on_drop(true).output().await.context("run a program")?;
        ensure!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path of text")
}
