//! The gateway's books, as it answers `GET /books`.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use oncebox_tests::http_get;
use serde::Deserialize;

/// The gateway's work for one key or reference.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Line {
    /// Requests that reached it.
    pub(crate) requests: u64,
    /// The numbers of its effects: one, if all is well.
    pub(crate) made: Vec<i64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Books {
    pub(crate) charges: BTreeMap<String, Line>,
    pub(crate) payouts: BTreeMap<String, Line>,
    /// Requests that were refused before anything was done.
    pub(crate) refused: u64,
    /// Answers that were lost after all was done.
    pub(crate) lost: u64,
    /// Answers that came too late.
    pub(crate) late: u64,
}

pub(crate) async fn read(port: u16) -> Result<Books> {
    let answer = http_get(port, "/books").await?;
    let (_, body) = answer.split_once("\r\n\r\n").context("an HTTP answer")?;
    serde_json::from_str(body).context("read the gateway's books")
}
