//! The spans of handlers in each language: those of the inbox in Rust.

use oncebox_tests::TestEnv;
use tokio::{process::Command, time::timeout};

use super::shop::{LIMIT, Programs, lines};

/// Defines the test of each client, with its name for an error of a handler's.
macro_rules! clients {
    ($($client:ident: $error:literal),*) => {$(
        #[tokio::test]
        async fn $client() {
            if let Some(programs) = Programs::of(stringify!($client)) {
                trace(programs, $error).await;
            }
        }
    )*};
}
clients!(python: "ValueError", typescript: "RangeError", go: "*errors.errorString");

async fn trace(programs: Programs, error: &str) {
    let env = TestEnv::new().await;
    let mut tracing = Command::new(programs.file("tracing"));
    tracing.env("DATABASE_URL", env.database_url()).kill_on_drop(true);
    let output = timeout(LIMIT, tracing.output()).await.expect("the program ends").unwrap();
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let mut own = Vec::new();
    let spans = said.lines().map(|line| {
        let mut words: Vec<&str> = line.split(' ').collect();
        own.push(words.remove(4).to_owned());
        words.join(" ")
    });
    let expected = |(key, cause): (&str, &str)| {
        format!(
            "handle CONSUMER 4bf92f3577b34da6a3ce929d0e0e4736 00f067aa0ba902b7 messaging.consumer.group.name=tracing \
             messaging.destination.name=a.b messaging.message.id={key} messaging.operation.name=process \
             messaging.operation.type=process messaging.system=nats oncebox.delivery=1 oncebox.scope=tracing {cause}"
        )
    };
    let ends = [("done", "-"), ("dead", "dead"), ("retry", "retry"), ("slow", "timeout"), ("fails", error)];
    assert_eq!(spans.collect::<Vec<_>>(), ends.map(expected), "{errors}");
    // The message that a handler enqueued is a child of its span.
    let next = "SELECT key || ' ' || (headers ->> 'traceparent') FROM oncebox.message";
    let child = format!("done:next 00-4bf92f3577b34da6a3ce929d0e0e4736-{}-01", own[0]);
    assert_eq!(lines(&env.pg().await, next).await, [child]);
}
