//! An upgrade, rehearsed with programs as they are released: the last release's beside this one's.

use std::{env, path::PathBuf};

use oncebox_tests::{Postgres, TestEnv};
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use crate::relay::{
    process::{Process, environment, program},
    support::{assert_delivered, await_messages, client, enqueue, stored, values},
};

/// The program that this variable names: `make rehearsal OLD=FILE NEW=FILE`. Unset, the one that
/// was built, so that the rehearsal itself is tested.
fn release(variable: &str) -> PathBuf {
    env::var_os(variable).map_or_else(program, PathBuf::from)
}

async fn migrate(program: &PathBuf, url: &str) {
    let mut command = Command::new(program);
    let output = command.args(["migrate", "--database-url", url]).env_clear().output().await.unwrap();
    assert!(output.status.success(), "{program:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The last release has installed the schema, and its relay runs while producers enqueue. This
/// release migrates, starts its relay beside the old one, and stays alone; then the upgrade is
/// taken back the same way. Every message arrives once and in its order, and no relay complains.
#[tokio::test]
async fn a_release_takes_over_from_the_last_one_and_gives_back_beneath_producers() {
    let (old, new) = (release("ONCEBOX_TEST_OLD_PROGRAM"), release("ONCEBOX_TEST_NEW_PROGRAM"));
    let env = TestEnv::new().await;
    let (stream, subject) = (env.stream().await, env.subject("a"));
    let server = Postgres::start().await.unwrap();
    let url = server.url("postgres");
    let values = values(&url, env.nats_url());
    let relay = async |program: &PathBuf| {
        let process = Process::start_file(program, &["relay"], environment(&values));
        process.await_log("relay is running").await;
        process
    };

    migrate(&old, &url).await;
    let over = CancellationToken::new();
    let producer = client(&url).await;
    let producing = async {
        let mut keys = Vec::new();
        for n in 0.. {
            if over.is_cancelled() {
                break;
            }
            keys.extend(enqueue(&**producer, &subject, "m-", n..n + 1, 3).await);
        }
        keys
    };
    let upgrading = async {
        let more = async || await_messages(&stream, stored(&stream).await.len() + 50).await;
        let first = relay(&old).await;
        more().await;
        migrate(&new, &url).await;
        more().await;
        let second = relay(&new).await;
        more().await;
        ends_content(first).await;
        more().await;
        let third = relay(&old).await;
        ends_content(second).await;
        more().await;
        over.cancel();
        third
    };
    let (expected, third) = tokio::join!(producing, upgrading);
    await_messages(&stream, expected.len()).await;
    assert_eq!(assert_delivered(&stored(&stream).await, &expected), 0);
    ends_content(third).await;
}

async fn ends_content(relay: Process) {
    relay.signal("TERM").await;
    let (status, log) = relay.ended().await;
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(!log.contains("ERROR") && !log.contains("WARN"), "{log}");
}
