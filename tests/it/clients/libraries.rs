//! Producers and handlers through the libraries that teams use, each in its own transaction; in
//! Python also the HTTP layer around routers, mounts, files and background tasks, and how errors
//! count.

use oncebox_tests::{Program, TestEnv, eventually, oncebox};
use tokio::{process::Command, time::timeout};

use super::shop::{LIMIT, Programs, lines, repository};

/// Defines the tests of TypeScript, each a program that is a test of its own.
macro_rules! typescript {
    ($($program:ident),*) => {
        mod typescript {$(
            #[tokio::test]
            async fn $program() {
                super::pass("typescript", stringify!($program)).await;
            }
        )*}
    };
}
typescript!(orms, uploads, measured, refusing, wrapped, starting, restarting, leased);

/// The saga of tests/clients/order.toml may be started.
async fn saga_may_start(env: &TestEnv) {
    let file = repository().join("tests/clients/order.toml").display().to_string();
    let environment = [("DATABASE_URL", env.database_url())];
    let (code, _, problem) = oncebox(&["saga", "apply", &file], &environment).await.unwrap();
    assert_eq!(code, 0, "{problem}");
}

async fn pass(client: &str, program: &str) {
    let Some(programs) = Programs::of(client) else { return };
    let env = TestEnv::new().await;
    saga_may_start(&env).await;
    let mut command = Command::new(programs.file(program));
    command.env("DATABASE_URL", env.database_url()).env("NATS_URL", env.nats_url()).kill_on_drop(true);
    let output = timeout(LIMIT, command.output()).await.expect("it ends").unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
}

#[tokio::test]
async fn go() {
    let Some(programs) = Programs::of("go") else { return };
    let env = TestEnv::new().await;
    saga_may_start(&env).await;
    let client = env.pg().await;
    let table = "CREATE TABLE effects (id bigserial PRIMARY KEY, library text NOT NULL, amounts bigint[])";
    client.batch_execute(table).await.unwrap();
    let mut program = Command::new(programs.file("libraries"));
    program.env("DATABASE_URL", env.database_url()).kill_on_drop(true);
    let output = timeout(LIMIT, program.output()).await.expect("the program ends").unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8_lossy(&output.stdout);
    for measured in [
        "handler_seconds done 3 0",
        "handler_seconds *errors.errorString 1 0",
        "handlers_running orms:test 0 0",
    ] {
        assert!(said.contains(measured), "{said}");
    }
    let effects = lines(&client, "SELECT library FROM effects ORDER BY id").await;
    assert_eq!(effects, ["stdlib sent", "pq sent", "gorm", "sqlc", "sqlx"]);
    let sent = lines(&client, "SELECT key FROM oncebox.message ORDER BY id").await;
    let enqueued: Vec<_> = sent.iter().filter(|key| key.ends_with(":sent")).collect();
    assert_eq!(enqueued, ["stdlib:sent", "pq:sent", "sqlx:sent", "gorm:sent", "behind-gorm:sent"]);
    let started: Vec<_> = sent.iter().filter(|key| key.ends_with(":reserve")).collect();
    let commands = ["stdlib", "pq", "sqlx", "pgx", "gorm"].map(|library| format!("{library}:order:reserve"));
    assert_eq!(started, commands.iter().collect::<Vec<_>>());
    assert_eq!(lines(&client, "SELECT key FROM oncebox.dead_letter").await, ["commits:handle"]);
}

/// Path, status, whether it is a copy, Vary and Set-Cookie: each request is sent twice.
const SERVED: &str = "/form 500 [] [] []
/form 500 [] [] []
/read 500 [] [] []
/read 500 [] [] []
/read 500 [] [] []
/read 500 [] [] []
/part 500 [] [] []
/part 500 [] [] []
/headers 201 [false] [Origin Accept-Language] [a=1]
/headers 201 [true] [Origin] [a=1]
/bare-gin/7 500 [] [] []
/bare-gin/7 500 [] [] []
/gin/7 201 [false] [Accept-Language] []
/gin/7 201 [true] [] []
/bare-echo/7 500 [] [] []
/bare-echo/7 500 [] [] []
/echo/7 201 [false] [Accept-Language] []
/echo/7 201 [true] [] []
";

#[tokio::test]
async fn a_body_that_was_read_before_is_refused_in_go_and_gin_and_echo_fit() {
    let Some(programs) = Programs::of("go") else { return };
    let env = TestEnv::new().await;
    let client = env.pg().await;
    client.batch_execute("CREATE TABLE effects (id bigserial PRIMARY KEY, library text)").await.unwrap();
    let mut program = Command::new(programs.file("libraries"));
    program.arg("http").env("DATABASE_URL", env.database_url()).kill_on_drop(true);
    let output = timeout(LIMIT, program.output()).await.expect("the program ends").unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        SERVED,
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(lines(&client, "SELECT library FROM effects").await, ["http"; 3]);
}

/// Defines the tests of Python.
macro_rules! python {
    ($($test:ident: $file:literal, $name:literal;)*) => {$(
        #[tokio::test]
        async fn $test() {
            let Some(programs) = Programs::of("python") else { return };
            let env = TestEnv::new().await;
            env.pg().await.batch_execute("CREATE TABLE charge (id text, cents bigint)").await.unwrap();
            env.stream().await;
            saga_may_start(&env).await;
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

python! {
    asyncpg: "libraries", "asyncpg";
    sqlalchemy_over_asyncpg: "libraries", "sqlalchemy-asyncpg";
    sqlalchemy_over_psycopg: "libraries", "sqlalchemy-psycopg";
    sqlalchemy_that_blocks: "libraries", "sqlalchemy";
    psycopg_that_blocks: "libraries", "psycopg";
    django: "libraries", "django";
    layers: "layers", "all";
    troubles: "troubles", "all";
    effects: "effects", "all";
    leases: "leases", "all";
}
