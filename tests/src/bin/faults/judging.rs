//! The judge: a program without code of ours that compares ledger, stream and effects.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use oncebox_tests::program_file;
use tokio::{process::Command, time::timeout};

use crate::{
    consumer,
    stage::{STREAM, Stage},
};

/// It reads ten million messages in a part of this time.
const JUDGE_MAX: Duration = Duration::from_secs(30 * 60);

/// Has the judge look, which prints its verdict.
pub(crate) async fn judge(stage: &Stage<'_>) -> Result<()> {
    let (database_url, nats_url) = (stage.database_url(), stage.broker.url());
    let ledger = "SELECT key, entity::text, place FROM placed";
    let arguments = [
        ["--producers", &database_url],
        ["--ledger", ledger],
        ["--nats", &nats_url],
        ["--stream", STREAM],
        ["--subject", consumer::SUBJECTS],
        ["--effects", "SELECT key FROM effect ORDER BY id"],
    ];
    let mut judge = Command::new(program_file("judge")?);
    let judging = judge.args(arguments.concat()).kill_on_drop(true).status();
    let status = timeout(JUDGE_MAX, judging).await.context("the judge takes too long")??;
    ensure!(status.success(), "the judge says no: {status}");
    Ok(())
}
