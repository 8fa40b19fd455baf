//! A peer that leads the same three steps: DBOS Transact, whose workflows are functions of a Python
//! program. Each step is one INSERT in a transaction of its own, in the same PostgreSQL. Its steps
//! run in the program itself: no message is sent, and no other service takes part.

use std::{process::Stdio, time::Duration};

use anyhow::{Context as _, Result, ensure};
use tokio::{process::Command, time::timeout};

use crate::servers::Servers;

const LIMIT: Duration = Duration::from_secs(600);

/// How many workflows a second, and the milliseconds of one that is alone.
pub(super) async fn measure(
    servers: &Servers,
    python: &str,
    count: usize,
    length: Duration,
) -> Result<(f64, f64)> {
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/dbos_sagas.py");
    let mut command = Command::new(python);
    command.args([program, &count.to_string(), &length.as_secs_f64().to_string()]);
    command.env("DATABASE_URL", servers.database_url("postgres")).stdin(Stdio::null()).kill_on_drop(true);
    let ended = timeout(LIMIT, command.output()).await.context("the peer has not ended")??;
    let said = String::from_utf8_lossy(&ended.stdout);
    ensure!(ended.status.success(), "the peer failed: {}", String::from_utf8_lossy(&ended.stderr));
    let found =
        said.trim().split_once(' ').and_then(|(rate, alone)| Some((rate.parse().ok()?, alone.parse().ok()?)));
    found.with_context(|| format!("the peer printed {said:?}"))
}
