//! Recordings of relays, which the specification in `model/` has to accept.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use oncebox_model::trace::{Circumstances, LEDGER, Ledger, Passes, Verdict, check};
use tempfile::TempDir;
use tokio_postgres::Client;

/// The recordings of all relays of an outbox: a file for each.
#[derive(Debug)]
pub struct Recording(TempDir);

impl Recording {
    /// An empty one.
    ///
    /// # Errors
    /// There is no place for the files.
    pub fn new() -> Result<Self> {
        Ok(Self(TempDir::new()?))
    }

    /// The value of `trace-file` for a relay.
    #[must_use]
    pub fn file(&self, relay: usize) -> String {
        self.0.path().join(format!("relay-{relay}")).display().to_string()
    }

    /// Holds the recordings to the specification, with the ledger of their database. The relays
    /// have ended.
    ///
    /// # Errors
    /// PostgreSQL refuses, or a file cannot be read.
    pub async fn verdict(&self, client: &Client, of: Circumstances) -> Result<Verdict> {
        let rows = client.query(LEDGER, &[]).await.context("read the ledger")?;
        let ledger = Ledger::parse(rows.iter().map(|row| row.get(0))).context("parse the ledger")?;
        let mut passes = Passes::default();
        for file in std::fs::read_dir(self.0.path())? {
            passes.add(&std::fs::read_to_string(file?.path())?);
        }
        Ok(check(&ledger, &passes, of))
    }

    /// As [`Recording::verdict`]; returns how often each action occurred.
    ///
    /// # Errors
    /// As there; or the specification rejects the recordings: they are kept.
    pub async fn accepted(self, client: &Client, of: Circumstances) -> Result<String> {
        let verdict = self.verdict(client, of).await?;
        if !verdict.is_right() {
            let kept: PathBuf = self.0.keep();
            ensure!(false, "the specification rejects the recording in {}: {verdict}", kept.display());
        }
        Ok(verdict.to_string())
    }
}
