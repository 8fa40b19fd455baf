//! Services in Python that write through their own library, in their transactions and in handlers,
//! the HTTP layer around routers, mounts, files and background tasks, and how errors count.

use oncebox_tests::{Program, TestEnv, eventually};

use super::shop::{LIMIT, Programs};

/// Defines the tests of each library.
macro_rules! libraries {
    ($($test:ident: $file:literal, $name:literal;)*) => {$(
        #[tokio::test]
        async fn $test() {
            let Some(programs) = Programs::of("python") else { return };
            let env = TestEnv::new().await;
            env.pg().await.batch_execute("CREATE TABLE charge (id text, cents bigint)").await.unwrap();
            env.stream().await;
            let environment = [
                ("DATABASE_URL", env.database_url().to_owned()),
                ("NATS_URL", env.nats_url().to_owned()),
                ("STREAM", env.name().to_owned()),
            ];
            let mut program = Program::start_file(&programs.file($file), &[$name], &environment).await.unwrap();
            eventually("all is well", LIMIT, async || {
                let is_well = program.log().contains("all is well");
                assert!(is_well || program.check().is_ok(), "it ended: {}", program.log());
                is_well.then_some(())
            })
            .await;
        }
    )*};
}
libraries! {
    asyncpg: "libraries", "asyncpg";
    sqlalchemy_over_asyncpg: "libraries", "sqlalchemy-asyncpg";
    sqlalchemy_over_psycopg: "libraries", "sqlalchemy-psycopg";
    sqlalchemy_that_blocks: "libraries", "sqlalchemy";
    psycopg_that_blocks: "libraries", "psycopg";
    django: "libraries", "django";
    layers: "layers", "all";
    troubles: "troubles", "all";
}
