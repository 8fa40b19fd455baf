//! Libraries that teams use with a client: a message in their transaction, and a handler that
//! writes through them.

use oncebox_tests::TestEnv;
use tokio::{process::Command, time::timeout};

use super::shop::{LIMIT, Programs, lines};

#[tokio::test]
async fn gorm_sqlc_sqlx_and_pq_enqueue_and_handle_in_go() {
    let Some(programs) = Programs::of("go") else { return };
    let env = TestEnv::new().await;
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
    assert_eq!(sent, ["stdlib:sent", "pq:sent", "sqlx:sent", "gorm:sent", "behind-gorm:sent"]);
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
async fn a_body_that_was_read_before_is_refused_and_gin_and_echo_fit_in_go() {
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
