//! A partition in files, so that the example needs no broker: `NAME.log` has a record in each line,
//! as JSON, and `NAME.position` the position.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
    time::{Duration, UNIX_EPOCH},
};

use anyhow::{Context, Result};
use tokio::{
    fs::{self, File},
    io::{AsyncBufReadExt, BufReader, Lines},
};

use super::{Partition, Record};

/// A partition that is read from its stored position on.
#[derive(Debug)]
pub struct FilePartition {
    name: String,
    position: PathBuf,
    lines: Lines<BufReader<File>>,
    next: u64,
}

#[derive(serde::Deserialize)]
struct Line {
    seconds: u64,
    key: String,
    value: String,
}

impl FilePartition {
    /// Opens the partition of this name.
    ///
    /// # Errors
    /// A file cannot be read, or the position is not a number.
    pub async fn open(directory: &Path, name: &str) -> Result<Self> {
        let position = directory.join(format!("{name}.position"));
        let stored = match fs::read_to_string(&position).await {
            Ok(text) => text.trim().parse().with_context(|| format!("read {}", position.display()))?,
            Err(error) if error.kind() == ErrorKind::NotFound => 0,
            Err(error) => return Err(error).with_context(|| format!("read {}", position.display())),
        };
        let log = directory.join(format!("{name}.log"));
        let file = File::open(&log).await.with_context(|| format!("open {}", log.display()))?;
        let mut lines = BufReader::new(file).lines();
        for _ in 0..stored {
            lines.next_line().await?;
        }
        Ok(Self { name: name.to_owned(), position, lines, next: stored })
    }
}

impl Partition for FilePartition {
    fn name(&self) -> &str {
        &self.name
    }

    async fn next(&mut self) -> Result<Option<Record>> {
        let Some(line) = self.lines.next_line().await? else { return Ok(None) };
        let offset = self.next;
        self.next += 1;
        let described = || format!("read record {offset} of partition {}", self.name);
        let Line { seconds, key, value } = serde_json::from_str(&line).with_context(described)?;
        let time = UNIX_EPOCH + Duration::from_secs(seconds);
        Ok(Some(Record { offset, time, key, value }))
    }

    async fn commit(&mut self, position: u64) -> Result<()> {
        let next = self.position.with_extension("next");
        fs::write(&next, position.to_string()).await.with_context(|| format!("write {}", next.display()))?;
        let stored = fs::rename(&next, &self.position).await;
        stored.with_context(|| format!("write {}", self.position.display()))
    }
}
