//! Programs that are tests of their own: against the libraries that teams use, and of a start.

use oncebox_tests::TestEnv;
use tokio::{process::Command, time::timeout};

use super::shop::{LIMIT, Programs};

/// Defines the test of each program.
macro_rules! programs {
    ($($client:ident: $($program:ident),*;)*) => {$(
        mod $client {$(
            #[tokio::test]
            async fn $program() {
                super::pass(stringify!($client), stringify!($program)).await;
            }
        )*}
    )*};
}
programs! {
    typescript: orms, uploads, measured, refusing, wrapped, starting;
}

async fn pass(client: &str, program: &str) {
    let Some(programs) = Programs::of(client) else { return };
    let env = TestEnv::new().await;
    let mut command = Command::new(programs.file(program));
    command.env("DATABASE_URL", env.database_url()).env("NATS_URL", env.nats_url()).kill_on_drop(true);
    let output = timeout(LIMIT, command.output()).await.expect("it ends").unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
}
