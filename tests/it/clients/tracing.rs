//! The spans of handlers in each language: those of the inbox in Rust.

use oncebox_tests::TestEnv;
use tokio::{process::Command, time::timeout};

use super::shop::{LIMIT, Programs, lines, publish_raw};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";
/// How many messages are handled as sets.
const MESSAGES: usize = 20;

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
    let _stream = env.stream().await;
    for n in 0..MESSAGES {
        let headers = format!("Idempotency-Key: set-{n}\r\ntraceparent: 00-{TRACE}-{PARENT}-01\r\n");
        publish_raw(env.nats_url(), &env.subject("a"), &headers, "\"done\"").await;
    }
    let mut tracing = Command::new(programs.file("tracing"));
    tracing.env("DATABASE_URL", env.database_url()).env("NATS_URL", env.nats_url()).kill_on_drop(true);
    tracing.env("STREAM", env.name()).env("MESSAGES", MESSAGES.to_string());
    let output = timeout(LIMIT, tracing.output()).await.expect("the program ends").unwrap();
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let mut own = Vec::new();
    let spans = said.lines().filter(|line| line.starts_with("handle"));
    let (sets, runs): (Vec<&str>, Vec<&str>) = spans.partition(|line| line.starts_with("handle_set"));
    linked(&sets, error);
    let spans = runs.into_iter().map(|line| {
        let mut words: Vec<&str> = line.split(' ').collect();
        own.push(words.remove(4).to_owned());
        words.join(" ")
    });
    let expected = |(key, cause): (&str, &str)| {
        format!(
            "handle CONSUMER {TRACE} {PARENT} messaging.consumer.group.name=tracing \
             messaging.destination.name=a.b messaging.message.id={key} messaging.operation.name=process \
             messaging.operation.type=process messaging.system=nats oncebox.delivery=1 oncebox.scope=tracing {cause}"
        )
    };
    let ends = [("done", "-"), ("dead", "dead"), ("retry", "retry"), ("slow", "timeout"), ("fails", error)];
    assert_eq!(spans.collect::<Vec<_>>(), ends.map(expected), "{errors}");
    // The message that a handler enqueued is a child of its span.
    let next = "SELECT key || ' ' || (headers ->> 'traceparent') FROM oncebox.message";
    let child = format!("done:next 00-{TRACE}-{}-01", own[0]);
    assert_eq!(lines(&env.pg().await, next).await, [child]);
}

/// Each set has a span, which is linked with those that its messages name. The first set failed.
fn linked(sets: &[&str], error: &str) {
    let mut causes = Vec::new();
    for set in sets {
        let mut words: Vec<&str> = set.split(' ').collect();
        words.remove(4);
        causes.push(words.pop().unwrap());
        let count = words[2];
        let expected = format!(
            "handle_set CONSUMER {count} {TRACE}:{PARENT} messaging.batch.message_count={count} \
             messaging.consumer.group.name=tracing messaging.operation.name=process messaging.operation.type=process \
             messaging.system=nats oncebox.scope=tracing"
        );
        assert_eq!(words.join(" "), expected);
    }
    assert!(
        causes.len() > 1 && causes[0] == error && causes[1..].iter().all(|cause| *cause == "-"),
        "{causes:?}"
    );
}
