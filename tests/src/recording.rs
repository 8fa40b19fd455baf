//! Recordings of relays, and of consumers, which the specification in `model/` has to accept.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use oncebox_model::trace::{
    Circumstances, KEYS, Keys, LEDGER, Ledger, Passes, Steps, Verdict, check, check_consumers, keep,
};
use tempfile::TempDir;
use tokio_postgres::Client;

/// The recordings of all relays of an outbox, or of all consumers of a database: a file for each.
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

    /// The value of `trace-file` for a process.
    #[must_use]
    pub fn file(&self, process: usize) -> String {
        self.0.path().join(format!("process-{process}")).display().to_string()
    }

    /// Holds the recordings of consumers, which have ended, to the specification, with the ledger
    /// of their database and the lines of those who have counted effects. The expected actions have
    /// to occur. The smallest parts of a rejected recording are written beside it.
    ///
    /// # Errors
    /// PostgreSQL refuses, a file cannot be read or written, or a line is none.
    pub async fn of_consumers(
        &self,
        client: &Client,
        counted: &[String],
        expected: &[&'static str],
    ) -> Result<Verdict> {
        let rows = client.query(KEYS, &[]).await.context("read the keys")?;
        let lines = rows.iter().map(|row| row.get(0)).chain(counted.iter().map(String::as_str));
        let lines: Vec<&str> = lines.collect();
        let ledger = Keys::parse(lines.iter().copied()).context("parse the keys")?;
        let (mut steps, mut recordings) = (Steps::default(), Vec::new());
        for file in std::fs::read_dir(self.0.path())? {
            recordings.push(std::fs::read_to_string(file?.path())?);
        }
        recordings.iter().for_each(|text| steps.add(text));
        let verdict = check_consumers(&ledger, &steps, expected);
        if !verdict.is_right() {
            keep(&lines, &recordings, self.0.path()).context("keep what is rejected")?;
        }
        Ok(verdict)
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
        self.right(&verdict)
    }

    /// The actions of a verdict.
    ///
    /// # Errors
    /// The specification rejects the recordings: they are kept.
    pub fn right(self, verdict: &Verdict) -> Result<String> {
        if !verdict.is_right() {
            let kept: PathBuf = self.0.keep();
            ensure!(false, "the specification rejects the recording in {}: {verdict}", kept.display());
        }
        Ok(verdict.to_string())
    }
}
