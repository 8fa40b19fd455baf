//! The pages in a real browser: no markup of others runs, every user can use them, and moving parts
//! move by themselves.

use std::{cell::RefCell, fs, path::PathBuf};

use fantoccini::{Client, Locator};
use oncebox_tests::{Browser, TestEnv, within};
use serde_json::{Value, json};

use super::{hostile::PAGES, support::Console};
use crate::{
    operator::sagas::SAGAS,
    relay::{
        process::{Process, run_ok},
        support::{LIMIT, connect, drain, enqueue, values_of, with},
    },
};

/// The rules of accessibility; `make .dev/axe` installs them.
const AXE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../.dev/axe/node_modules/axe-core/axe.min.js");
/// Markup that would run, were it not escaped, in each field that others fill.
const HOSTILE: &str = r#"
SELECT oncebox.enqueue('<script>pwned=1</script>', 'nobody.<img/src=x/onerror=pwned=1//', '"><script>pwned=1</script>',
                       '{"x": "<script>pwned=1</script>"}', '''"><script>pwned=1</script>');
SELECT oncebox.bury('"><script>pwned=1</script>', '<svg/onload=pwned=1>', '<script>pwned=1</script>', '</td><script>pwned=1</script>',
                    'mail.<script>pwned=1</script>', '{"y": "<img src=x onerror=pwned=1>"}');
INSERT INTO oncebox.inbox_attempt (scope, tenant, key, message, reason, failed_at, subject)
VALUES ('"><script>pwned=1</script>', '', 'k', 'ORDERS/1', '<img src=x onerror=pwned=1>', now(), '<b>');
"#;

/// Rows for the other pages.
const TROUBLE: &str = r#"
SELECT oncebox.bury('mail', 'order-' || n || ':mail', 'payload', CASE WHEN n < 5 THEN 'no account' ELSE 'the mailbox is full' END,
                    'mail.send')
FROM generate_series(1, 7) AS n;
SELECT oncebox.register_scope('payment-service:charge');
SELECT oncebox.attempt_failed('payment-service:charge', 'order-' || n, '', 'ORDERS', n, clock_timestamp(),
                              'relation "charge" does not exist', 'orders.placed', 60, 3600)
FROM generate_series(1, 3) AS n;
SELECT oncebox.enqueue_at('remind-' || n, 'mail.remind', 'payload', clock_timestamp() + n * interval '1 hour')
FROM generate_series(1, 3) AS n;
INSERT INTO oncebox.history (
  at, relay, version, leads, seconds, stored, stored_median, stored_p99, subjects, counts, lag_seconds, backlog, parked, dead,
  delayed, failing, dead_letters, sampled, handled, handled_median, handled_p99
)
SELECT
  clock_timestamp() - n * interval '1 minute', '5c6f64a9-3c05-4b43-a9a5-0d6a2f3a7b10', '0.1.0', true, 60, h.stored, 0.003, 0.02 + h.wave / 50,
  '{orders.placed,mail.remind}', ARRAY[h.stored * 3 / 4, h.stored / 4], 0.1 + h.wave, 5 + 40 * h.wave, 8, 4, 3, 2, 3, 100, 99,
  0.02 + h.wave / 20, 0.3 + h.wave
FROM generate_series(1, 1440) AS n
CROSS JOIN LATERAL (
  SELECT (2400 + 1600 * sin(n / 230.0))::bigint AS stored, greatest(sin(n / 47.0) - 0.6, 0) * 2 AS wave
) AS h;
"#;

/// Every page, by the name of its picture.
fn pages() -> Vec<(&'static str, &'static str)> {
    vec![
        ("overview", "/"),
        ("database", "/db/shop"),
        ("history", "/db/shop/history?range=day"),
        ("proof", "/db/shop/proof?since=1h"),
        ("find", "/find?q=order-1"),
        ("key", "/key?key=order-1"),
        ("why", "/key?key=lost-1"),
        ("why-unknown", "/key?key=nobody"),
        ("parked", "/db/shop/set-aside"),
        ("dead", "/db/shop/set-aside?kind=dead"),
        ("failing", "/db/shop/set-aside?kind=failing"),
        ("dead-letters", "/db/shop/set-aside?kind=dead-letters"),
        ("letter", "/db/shop/letter?id=1"),
        ("edit", "/db/shop/edit?kind=dead-letters&id=1"),
        ("message", "/db/shop/message?key=lost-1"),
        ("act", "/db/shop/act?kind=dead&action=retry&all=1"),
        ("sagas", "/db/shop/sagas"),
        ("saga", "/db/shop/saga?key=2:order"),
        ("delayed", "/db/shop/delayed"),
        ("pauses", "/db/shop/pauses"),
        ("replays", "/db/shop/replays"),
        ("losses", "/db/shop/losses"),
        ("doctor", "/db/shop/doctor"),
        ("audit", "/db/shop/audit"),
        ("jobs", "/jobs"),
        ("settings", "/settings"),
    ]
}

async fn goto(page: &Client, console: &Console, path: &str) {
    page.goto(&format!("http://{}{path}", console.address)).await.unwrap();
}

async fn text(page: &Client) -> String {
    page.find(Locator::Css("body")).await.unwrap().text().await.unwrap()
}

async fn run(page: &Client, script: &str) -> Value {
    page.execute(script, vec![]).await.unwrap()
}

/// A shop with all that pages show.
async fn shop() -> TestEnv {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    env.stream().await;
    enqueue(&client, &env.subject("placed"), "order-", 0..40, 4).await;
    client.batch_execute(SAGAS).await.unwrap();
    client.batch_execute(TROUBLE).await.unwrap();
    let (lost, paused) = (format!("nowhere.{}", env.name()), env.subject("paused"));
    enqueue(&client, &lost, "lost-", 1..8, 2).await;
    drain(&mut connect(&with(&values_of(&env), [("attempts-max", "1")])).await.worker()).await;
    enqueue(&client, &format!("no-stream.{}", env.name()), "astray-", 0..3, 0).await;
    let pause = ["outbox", "pause", "--subject", &paused, "--unseen", "--by", "mina", "--note", "INC-7"];
    run_ok(env.database_url(), &pause).await;
    env
}

/// Violations of the rules that axe knows, one line each.
async fn violations(page: &Client, rules: &str) -> Vec<String> {
    run(page, rules).await;
    let script = r"
        const [done] = arguments;
        axe.run(document, { resultTypes: ['violations'] }).then(
            found => done(found.violations.flatMap(v => v.nodes.map(n => v.id + ': ' + n.target + ' ' + n.failureSummary))),
            error => done(['axe: ' + error]));";
    let found = page.execute_async(script, vec![]).await.unwrap();
    serde_json::from_value(found).unwrap()
}

/// Chooses a theme as a reader would, with the browser's own setting.
async fn theme(page: &Client, name: &str) {
    run(page, &format!("localStorage.setItem('theme', '{name}')")).await;
    page.refresh().await.unwrap();
}

#[tokio::test]
async fn every_page_is_for_everybody_in_both_themes_on_a_desk_and_on_a_phone() {
    let Some(browser) = Browser::start().await.unwrap() else { return };
    let env = shop().await;
    let relay = Process::relay(&values_of(&env));
    let console = Console::of(&env, &["--show-payloads", "--allow-actions"]).await;
    console.row("shop", |row| row["has_leader"] == true).await;
    let page = browser.page();
    let rules = fs::read_to_string(AXE).expect("`make .dev/axe` installs it");
    let pictures = std::env::var_os("ONCEBOX_TEST_SCREENSHOTS").map(PathBuf::from);
    for (name, path) in pages() {
        for (look, width) in [("light", 1280), ("dark", 1280), ("light", 390)] {
            page.set_window_size(width, 900).await.unwrap();
            goto(page, &console, path).await;
            theme(page, look).await;
            let found = violations(page, &rules).await;
            assert!(found.is_empty(), "{path} {look} {width}: {}", found.join("\n"));
            let overflow = run(page, "return document.documentElement.scrollWidth - innerWidth").await;
            assert!(
                overflow.as_i64().is_some_and(|pixels| pixels <= 0),
                "{path} is {overflow} wider than {width}"
            );
            if let Some(folder) = &pictures {
                let suffix = if width == 390 { "phone" } else { look };
                fs::write(folder.join(format!("{name}-{suffix}.png")), page.screenshot().await.unwrap())
                    .unwrap();
            }
        }
    }
    drop(relay);
}

#[tokio::test]
async fn nothing_that_somebody_else_wrote_runs() {
    let Some(browser) = Browser::start().await.unwrap() else { return };
    let env = shop().await;
    env.pg().await.batch_execute(HOSTILE).await.unwrap();
    let console = Console::of(&env, &["--show-payloads"]).await;
    let page = browser.page();
    let hostile = [
        "/find?q=%3Cscript%3Epwned%3D1%3C/script%3E",
        "/key?key=%3Cscript%3Epwned%3D1%3C/script%3E",
        "/key?key=%3Csvg/onload%3Dpwned%3D1%3E",
    ];
    let ours = pages().into_iter().map(|(_, path)| path);
    for path in ours.chain(PAGES.iter().copied()).chain(hostile) {
        goto(page, &console, path).await;
        assert_eq!(
            run(page, "return [window.pwned ?? null, document.querySelectorAll('script:not([src])').length]")
                .await,
            json!([null, 0]),
            "{path}"
        );
    }
    goto(page, &console, hostile[1]).await;
    assert!(text(page).await.contains("<script>pwned=1</script>"), "it is shown as it is");
}

#[tokio::test]
async fn two_tabs_follow_a_relay_that_dies_and_a_database_that_comes_back() {
    let Some(browser) = Browser::start().await.unwrap() else { return };
    let env = TestEnv::new().await;
    env.stream().await;
    let (proxy, stalled) = crate::relay::support::through_proxy(env.database_url()).await;
    let console = Console::start(&[("shop", &*stalled)], Some(env.nats_url()), &[]).await;
    let relay = Process::relay(&values_of(&env));
    let (one, other) = (browser.page(), browser.other("second").await.unwrap());
    goto(one, &console, "/").await;
    goto(&other, &console, "/db/shop").await;
    let tabs = [one, &other];
    // No user reloads.
    let both_say = async |what: &str, is_said: &dyn Fn(&str) -> bool| {
        for tab in tabs {
            let last = RefCell::new(String::new());
            let said = within(what, 2 * LIMIT, async || {
                last.replace(text(tab).await.to_lowercase());
                Ok(is_said(&last.borrow()).then_some(()))
            });
            assert!(said.await.is_ok(), "{what}: {}", last.borrow());
        }
    };
    // A word of its own, not one of a remedy.
    let is_in = |text: &str, word: &str| text.split_whitespace().any(|other| other == word);
    let is_known = |text: &str| !is_in(text, "starting") && !is_in(text, "away");
    both_say("a relay at work", &|text| is_known(text) && !text.contains("no relay")).await;
    relay.kill().await;
    enqueue(&env.pg().await, &env.subject("a"), "m-", 0..3, 0).await;
    both_say("no relay", &|text| is_known(text) && text.contains("no relay")).await;
    proxy.stall(true);
    proxy.cut();
    both_say("the database is away", &|text| is_in(text, "away")).await;
    proxy.stall(false);
    both_say("the database is back", &|text| is_known(text) && text.contains("no relay")).await;
    other.close().await.unwrap();
}

#[tokio::test]
async fn an_operator_retries_all_that_match_with_a_few_clicks() {
    let Some(browser) = Browser::start().await.unwrap() else { return };
    let env = shop().await;
    let console = Console::of(&env, &["--allow-actions"]).await;
    console.row("shop", |row| row["dead"].as_i64() > Some(0)).await;
    let page = browser.page();
    goto(page, &console, "/db/shop/set-aside?kind=dead").await;
    let click = async |css: &str| {
        let found = page.wait().at_most(LIMIT).for_element(Locator::Css(css)).await;
        match found {
            Ok(element) => element.click().await.unwrap(),
            Err(error) => panic!("{css}: {error}: {}", page.source().await.unwrap()),
        }
    };
    click("a[href*='action=retry']").await;
    let asked = text(page).await;
    assert!(
        asked.contains("would retry 2 messages") && asked.contains("oncebox outbox dead retry"),
        "{asked}"
    );
    click("form[method=post] button.main").await;
    let client = env.pg().await;
    let retried = within("all are retried", LIMIT, async || {
        let sql = "SELECT count(*) FROM oncebox.parked WHERE dead_at IS NOT NULL";
        let dead: i64 = client.query_one(sql, &[]).await?.get(0);
        Ok((dead == 0).then_some(()))
    });
    assert!(retried.await.is_ok(), "{}", text(page).await);
    assert!(page.current_url().await.unwrap().path().starts_with("/jobs/"), "its progress is shown");
}

#[tokio::test]
async fn one_box_chooses_all_rows_of_a_page_and_each_can_be_left_out() {
    let Some(browser) = Browser::start().await.unwrap() else { return };
    let env = shop().await;
    let console = Console::of(&env, &["--allow-actions"]).await;
    let page = browser.page();
    goto(page, &console, "/db/shop/set-aside?kind=dead-letters").await;
    let click = async |css: &str| {
        let found = page.find(Locator::Css(css)).await.unwrap_or_else(|error| panic!("{css}: {error}"));
        found.click().await.unwrap();
    };
    let chosen = "return document.querySelectorAll('input[name=id]:checked').length";
    let rows = run(page, "return document.querySelectorAll('input[name=id]').length").await;
    assert!(rows.as_i64() > Some(2), "{rows}");
    click("input[data-all]").await;
    assert_eq!(run(page, chosen).await, rows);
    click("tbody input[name=id]").await;
    let left = json!(rows.as_i64().unwrap() - 1);
    assert_eq!(run(page, chosen).await, left);
    assert_eq!(run(page, "return document.querySelector('input[data-all]').indeterminate").await, true);
    click("button[value=retry]").await;
    let asked = text(page).await;
    assert!(asked.contains(&format!("would retry {left} dead letters")), "{asked}");
    page.back().await.unwrap();
    click("input[data-all]").await;
    click("input[data-all]").await;
    assert_eq!(run(page, chosen).await, 0, "none");
}
