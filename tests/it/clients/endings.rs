//! Handlers, errors and connections that end in odd ways, each with its verdict.

use oncebox_tests::TestEnv;
use tokio::{process::Command, time::timeout};

use super::shop::{LIMIT, Programs, lines};

/// Name, verdict, runs of the handler, whether the pause is long, reason and reply.
const GO: &str = r#"calm: handled, 1, false, null
rejects: rejected, 1, false, "no"
rejects: rejected, 0, false, "no"
conflict: handled, 2, false, null
later: retry, 1, true, not yet: the handler asked for a retry after 2h0m0s
group: retry, 1, false, first; second
field: dead, 1, false, the payload does not decode: field "cents" is a string, and int64 is wanted
number: dead, 1, false, the payload does not decode: field "cents" is a number, and int64 is wanted
syntax: dead, 1, false, the payload does not decode: no JSON, at byte 9
died: handled, 1, false, null
demoted: handled, 1, false, null
many: true true [0 0] true
"#;

#[tokio::test]
async fn go() {
    let Some(programs) = Programs::of("go") else { return };
    let env = TestEnv::new().await;
    let mut program = Command::new(programs.file("endings"));
    program.env("DATABASE_URL", env.database_url()).kill_on_drop(true);
    let output = timeout(LIMIT, program.output()).await.expect("the program ends").unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), GO, "{log}");
    assert!(log.contains("the tracer panicked"), "{log}");
    let sent = "SELECT concat_ws(' ', key, ordering_key, payload) FROM oncebox.message ORDER BY id";
    assert_eq!(lines(&env.pg().await, sent).await, [r"a o \x31", r"b \xff", r"c \x33"]);
}
