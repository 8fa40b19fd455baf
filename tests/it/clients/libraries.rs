//! Producers and handlers through the libraries that teams use, each in its own transaction.

use oncebox_tests::TestEnv;
use tokio::{process::Command, time::timeout};

use super::shop::{LIMIT, Programs};

#[tokio::test]
async fn typescript() {
    let Some(programs) = Programs::of("typescript") else { return };
    let env = TestEnv::new().await;
    let mut libraries = Command::new(programs.file("libraries"));
    libraries.env("DATABASE_URL", env.database_url());
    let output = timeout(LIMIT, libraries.kill_on_drop(true).output()).await.expect("it ends").unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
}
