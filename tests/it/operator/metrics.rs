//! The tables in docs/metrics.md list exactly the metrics of a scrape, and the measured values are
//! true.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write as _,
    process::{Command, Stdio},
    time::{Duration, SystemTime},
};

use oncebox_http::IdempotencyLayer;
use oncebox_inbox::{HandlerError, Measured, Outcome, metrics_text};
use oncebox_tests::{Proxy, TestEnv, eventually, prometheus_directory};

use crate::{
    inbox::support::{Does, environment, gives_up, inbox, message},
    operator::{inboxes::SCOPES, sagas::SAGAS, telemetry::file},
    relay::{
        process::{Process, run_ok},
        support::{LIMIT, await_messages, enqueue, values_of, with},
    },
};

/// One metric: labels, type, unit, meaning.
type Row = (BTreeSet<String>, String, String, String);

/// The rows of the n-th table of metrics, by name.
fn documented(table: usize) -> BTreeMap<String, Row> {
    let text = file("docs/metrics.md");
    let table =
        text.split("| metric | type | unit | meaning |\n").nth(table + 1).expect("a table").to_owned();
    let rows = table.lines().skip(1).take_while(|line| line.starts_with('|'));
    rows.map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [metric, kind, unit, meaning] = cells[..] else { panic!("{line}") };
        let metric = metric.trim_matches('`');
        let (name, labels) = metric.split_once('{').unwrap_or((metric, "}"));
        let labels = labels.trim_matches('}').split(',').filter(|label| !label.is_empty());
        let labels = labels.map(str::to_owned).collect();
        (name.to_owned(), (labels, kind.to_owned(), unit.to_owned(), meaning.to_owned()))
    })
    .collect()
}

/// The metrics of a scrape, by name. The unit comes from the name or from a `# UNIT` line, or is
/// empty.
fn scraped(text: &str) -> BTreeMap<String, Row> {
    let about = |what: &str| -> BTreeMap<&str, &str> {
        let lines = text.lines().filter_map(|line| line.strip_prefix(what)?.split_once(' '));
        lines.collect()
    };
    let (types, units, helps) = (about("# TYPE "), about("# UNIT "), about("# HELP "));
    let metrics = types.into_iter().map(|(family, kind)| {
        let name = match kind {
            "counter" if !family.ends_with("_total") => format!("{family}_total"),
            _ => family.to_owned(),
        };
        let unit = if name.ends_with("_seconds") { "seconds" } else { "" };
        assert_eq!(units.get(family).copied().unwrap_or(unit), unit, "{name}");
        let samples = text.lines().filter_map(|line| line.strip_prefix(family)?.split_once('{'));
        let labels = samples.flat_map(|(_, rest)| rest.split_once('}').expect("labels end").0.split(','));
        let labels = labels.map(|label| label.split('=').next().unwrap().to_owned());
        let labels = labels.filter(|label| label != "le").collect();
        let help = helps[family].trim_end_matches('.').to_owned();
        (name, (labels, kind.to_owned(), unit.to_owned(), help))
    });
    metrics.collect()
}

fn assert_same(mut documented: BTreeMap<String, Row>, scraped: &BTreeMap<String, Row>) {
    for (name, row) in &mut documented {
        assert!(!row.2.is_empty(), "{name} has no unit");
        if row.2 != "seconds" {
            row.2.clear();
        }
        assert_eq!(scraped.get(name), Some(&*row), "{name}: left a scrape, right docs/metrics.md");
    }
    let missing: Vec<&String> = scraped.keys().filter(|name| !documented.contains_key(*name)).collect();
    assert!(missing.is_empty(), "docs/metrics.md lacks {missing:?}");
}

#[tokio::test]
async fn the_tables_are_what_scrapes_show() {
    let env = environment().await;
    env.pg().await.batch_execute(&[SAGAS, SCOPES].join(";")).await.unwrap();
    let relay = Process::relay(&with(&values_of(&env), [("http-listen", "127.0.0.1:0")]));
    let text = relay.reading().await;
    assert_same(documented(0), &scraped(&text));
    let layer = IdempotencyLayer::builder(env.pool(1)).scope("shop").single_tenant().build().unwrap();
    let inbox = inbox(&env);
    let text = metrics_text([Measured::from(&inbox), (&layer).into()]);
    assert_same(documented(1), &scraped(&text));
}

#[tokio::test]
async fn the_age_of_messages_is_by_the_database_s_clock_and_replays_do_not_count() {
    let env = TestEnv::new().await;
    let stream = env.stream().await;
    let client = env.pg().await;
    enqueue(&client, &env.subject("a"), "a", 0..3, 0).await;
    let age = "UPDATE oncebox.message_0 SET created_at = created_at - interval '1 hour'";
    client.batch_execute(age).await.unwrap();
    let relay = Process::relay(&with(&values_of(&env), [("http-listen", "127.0.0.1:0")]));
    await_messages(&stream, 3).await;
    enqueue(&client, &env.subject("a"), "b", 0..5, 0).await;
    await_messages(&stream, 8).await;
    // Messages that are in the stream may not be settled yet, and only settled messages are
    // replayed.
    let subject = env.subject("a");
    let settled = async || {
        let told =
            run_ok(env.database_url(), &["outbox", "replay", "--dry-run", "--subject", &subject]).await;
        told.contains(" 8 messages").then_some(())
    };
    eventually("all settled", LIMIT, settled).await;
    run_ok(env.database_url(), &["outbox", "replay", "--subject", &subject]).await;
    await_messages(&stream, 16).await;
    let published = async || (relay.metric("oncebox_published_total").await >= 16.0).then_some(());
    eventually("all published", LIMIT, published).await;

    assert_eq!(relay.metric("oncebox_message_lag_seconds_count").await, 8.0);
    let sum = relay.metric("oncebox_message_lag_seconds_sum").await;
    assert!((3.0 * 3600.0..3.0 * 3600.0 + 120.0).contains(&sum), "{sum}");
    let bucket = relay.metric("oncebox_message_lag_seconds_bucket{le=\"900.0\"}").await;
    assert_eq!(bucket, 5.0, "only what was enqueued just now is younger");
}

#[tokio::test]
async fn a_relay_that_cannot_go_on_tells_for_how_long() {
    let env = TestEnv::new().await;
    env.stream().await;
    let port = env.database_url().parse::<tokio_postgres::Config>().unwrap().get_ports()[0];
    let proxy = Proxy::start(([127, 0, 0, 1], port).into()).await;
    let through = env.database_url().replacen(&format!(":{port}/"), &format!(":{}/", proxy.port()), 1);
    let options = [("database-url", &*through), ("http-listen", "127.0.0.1:0")];
    let relay = Process::relay(&with(&values_of(&env), options));
    let age = async || relay.metric("oncebox_pass_age_seconds").await;
    eventually("passes", LIMIT, async || (age().await < 1.0).then_some(())).await;
    proxy.stall(true);
    eventually("no pass", LIMIT, async || (age().await > 2.0).then_some(())).await;
    proxy.stall(false);
    eventually("passes again", LIMIT, async || (age().await < 1.0).then_some(())).await;
}

#[tokio::test]
async fn outcomes_and_times_of_an_inbox() {
    let env = environment().await;
    let inbox = inbox(&env);
    let enqueued = SystemTime::now() - Duration::from_secs(100);
    let time = humantime::format_rfc3339_micros(enqueued).to_string();
    let timed = |key: &str, n| message(key, n).header("Oncebox-Time", &*time);
    let says_no = Does::new(|_, _| Box::pin(async { Ok(Outcome::reject("no".to_owned())) }));
    let fails = Does::new(|_, _| Box::pin(async { Err(HandlerError::message("not today")) }));
    inbox.run(&Does::effect(), &timed("a", 1)).await.unwrap();
    inbox.run(&Does::effect(), &timed("a", 1)).await.unwrap();
    inbox.run(&Does::effect(), &timed("a", 2)).await.unwrap();
    inbox.run(&says_no, &timed("b", 1)).await.unwrap();
    inbox.run(&fails, &timed("c", 1)).await.unwrap();
    inbox.run(&gives_up(), &timed("d", 1)).await.unwrap();

    let text = metrics_text([&inbox]);
    let value = |series: &str| value_of(&text, series);
    let outcomes = [
        ("done", 1.0),
        ("rejected", 1.0),
        ("replayed", 1.0),
        ("in_flight", 0.0),
        ("mismatched", 1.0),
        ("retried", 1.0),
        ("dead", 1.0),
    ];
    for (outcome, expected) in outcomes {
        let series = format!("oncebox_inbox_messages_total{{scope=\"tests:effect\",outcome=\"{outcome}\"}}");
        assert_eq!(value(&series), expected, "{outcome}: {text}");
    }
    let effects =
        |what: &str| value(&format!("oncebox_inbox_effect_seconds_{what}{{scope=\"tests:effect\"}}"));
    assert_eq!(effects("count"), 2.0, "what was handled, not what was repeated or replayed");
    assert!((200.0..260.0).contains(&effects("sum")), "{text}");

    assert_promtool_agrees(&text);
}

/// The value of a series in a scrape.
pub(crate) fn value_of(text: &str, series: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in {text}")).parse().unwrap()
}

/// Checks a scrape with Prometheus's own tool.
pub(crate) fn assert_promtool_agrees(text: &str) {
    let program = prometheus_directory().unwrap().join("promtool");
    let mut promtool = Command::new(program);
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut promtool = promtool.spawn().unwrap();
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.is_empty(), "{said}{}", String::from_utf8_lossy(&output.stdout));
}
