//! deploy/alerts.yml and deploy/dashboard.json against a real Prometheus that scrapes a real relay
//! and inbox.

use std::{
    collections::BTreeSet,
    path::Path,
    process::Command,
    time::{Duration, SystemTime},
};

use oncebox_inbox::Received;
use oncebox_tests::{eventually, prometheus_directory};
use serde_json::Value;

use crate::{
    deploy::promql::Names,
    inbox::support::{Does, SCOPE, message},
    operator::{
        inboxes::{SCOPES, fail},
        sagas::SAGAS,
        telemetry::{Site, file},
    },
    relay::support::{LIMIT, enqueue},
};

/// The texts between `begin` and `end`.
fn between<'a>(text: &'a str, begin: &str, end: &str) -> Vec<&'a str> {
    text.split(begin).skip(1).filter_map(|rest| Some(rest.split_once(end)?.0.trim())).collect()
}

fn promtool(arguments: &[&str]) {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy");
    let program = prometheus_directory().unwrap().join("promtool");
    let output = Command::new(program).args(arguments).current_dir(deploy).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&said));
}

#[test]
fn the_rules_are_valid_and_fire_when_they_should() {
    promtool(&["check", "rules", "--lint=all", "--lint-fatal", "alerts.yml"]);
    promtool(&["test", "rules", "alerts_test.yml"]);
    let tested = file("deploy/alerts_test.yml");
    for name in between(&file("deploy/alerts.yml"), "- alert: ", "\n") {
        assert!(
            tested.contains(&format!("alertname: {name}")),
            "alerts_test.yml does not say when {name} is quiet"
        );
        let fires = [format!("alertname=\"{name}\""), format!("alertname: {name}\n        exp_alerts")];
        assert!(
            fires.iter().any(|text| tested.contains(text)),
            "alerts_test.yml does not say when {name} fires"
        );
    }
}

/// Every name that an expression and its texts use.
async fn assert_known(site: &Site, expression: &str, texts: &str) {
    site.prometheus.query(expression).await.expect("Prometheus understands it");
    let names = Names::of(expression);
    eventually(&format!("names of {expression}"), LIMIT, async || {
        names.missing(&site.prometheus).await.is_none().then_some(())
    })
    .await;
    let mut seen = names.labels.clone();
    for selector in &names.selectors {
        for sample in site.prometheus.query(selector).await.unwrap() {
            seen.extend(sample["metric"].as_object().unwrap().keys().cloned());
        }
    }
    let labels = between(texts, "$labels.", "}").into_iter();
    for label in labels.chain(between(texts, "{{", "}}").into_iter().filter(|text| !text.starts_with('$'))) {
        assert!(seen.contains(label), "{texts:?} shows label {label} of {expression}, which has {seen:?}");
    }
}

async fn traffic(site: &Site) {
    enqueue(&site.env.pg().await, &site.env.subject("taken.a"), "t", 0..100, 5).await;
    for n in 0..10 {
        let time = humantime::format_rfc3339_micros(SystemTime::now()).to_string();
        let message = message(&format!("i{n}"), 1).header("Oncebox-Time", time);
        site.inbox.run(&Does::effect(), &message).await.unwrap();
    }
}

#[tokio::test]
async fn every_name_in_an_alert_is_one_that_a_scrape_shows() {
    let site = Site::start(&file("deploy/alerts.yml")).await;
    site.env.pg().await.batch_execute(&[SAGAS, SCOPES].join(";")).await.unwrap();
    let rules = site.rules().await;
    assert!(rules.len() >= 10, "{rules:?}");
    let runbook = file("docs/alerts.md");
    for rule in &rules {
        let (name, annotations) = (rule["name"].as_str().unwrap(), &rule["annotations"]);
        for text in ["summary", "consequence", "action"] {
            assert!(annotations[text].as_str().is_some_and(|text| text.len() > 10), "{name} lacks {text}");
        }
        assert_eq!(annotations["runbook"], format!("docs/alerts.md#{}", name.to_lowercase()));
        assert!(runbook.contains(&format!("\n## {name}\n")), "docs/alerts.md has no section {name}");
        assert_known(&site, rule["query"].as_str().unwrap(), &annotations.to_string()).await;
    }
    // The check itself: names that do not exist.
    for wrong in [
        "oncebox_lags_seconds > 60",
        "max by (lanes) (oncebox_lane_lag_seconds)",
        "oncebox_lag_seconds{jobs=~\".*\"}",
        "rate(oncebox_inbox_messages_total{outcome=\"died\"}[5m])",
    ] {
        assert!(Names::of(wrong).missing(&site.prometheus).await.is_some(), "{wrong}");
    }
}

#[tokio::test]
async fn every_panel_of_the_dashboard_shows_something() {
    let dashboard: Value = serde_json::from_str(&file("deploy/dashboard.json")).unwrap();
    assert!(dashboard["schemaVersion"].as_u64().unwrap() >= 36, "Grafana 10 and newer");
    assert!(dashboard["uid"].as_str().is_some_and(|uid| !uid.is_empty()));
    assert_eq!(dashboard.get("id"), None, "an id belongs to one Grafana");
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    assert_eq!((&variables[0]["name"], &variables[0]["type"]), (&"datasource".into(), &"datasource".into()));
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "ids of panels are unique");

    let site = Site::start("").await;
    site.env.pg().await.batch_execute(&[SAGAS, SCOPES].join(";")).await.unwrap();
    assert_known(&site, "count by (job) (oncebox_lag_seconds)", "").await;
    traffic(&site).await;
    let mut expressions = 0;
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        assert!(panel["title"].as_str().is_some_and(|title| !title.is_empty()), "{panel}");
        for target in panel["targets"].as_array().unwrap() {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{target}");
            let expression = target["expr"].as_str().unwrap();
            let asked = expression.replace("$__rate_interval", "1m").replace("$job", "oncebox-orders");
            assert!(!asked.contains('$'), "{asked}: a variable that the dashboard does not have");
            assert_known(&site, &asked, target["legendFormat"].as_str().unwrap()).await;
            eventually(&format!("samples of {asked}"), LIMIT, async || {
                (!site.prometheus.query(&asked).await.unwrap().is_empty()).then_some(())
            })
            .await;
            expressions += 1;
        }
    }
    assert!(expressions > 20, "{expressions}");
}

#[tokio::test]
async fn alerts_fire_when_real_things_go_wrong_and_end_when_they_are_right_again() {
    let mut site = Site::start(&file("deploy/alerts.yml")).await;
    assert_known(&site, "oncebox_lag_seconds or oncebox_inbox_messages_total", "").await;
    traffic(&site).await;
    eventually("quiet", LIMIT, async || site.firing().await.is_empty().then_some(())).await;
    let client = site.env.pg().await;

    // Larger than the server's max_payload; a subject that no stream takes.
    let large = "SELECT oncebox.enqueue('large', $1, repeat('x', 5000)::bytea)";
    client.query_one(large, &[&site.env.subject("taken.b")]).await.unwrap();
    enqueue(&client, &site.env.subject("astray"), "astray", 0..3, 0).await;
    site.await_firing("OnceboxDeadMessages").await;
    site.await_firing("OnceboxParkedMessages").await;

    let bad = Received::new("s.t", "no JSON").header("Idempotency-Key", "bad");
    site.inbox.run(&Does::effect(), &bad).await.unwrap();
    site.await_firing("OnceboxInboxDeadLetters").await;
    client.batch_execute("DELETE FROM oncebox.dead_letter").await.unwrap();
    site.await_quiet("OnceboxInboxDeadLetters").await;
    fail(&client, SCOPE, "fails").await;
    site.await_firing("OnceboxInboxFailing").await;
    let late = SystemTime::now() - Duration::from_secs(3600);
    let late = message("late", 1).header("Oncebox-Time", humantime::format_rfc3339_micros(late).to_string());
    site.inbox.run(&Does::effect(), &late).await.unwrap();
    site.await_firing("OnceboxInboxSlow").await;

    site.postgres.refuse(true);
    site.postgres.cut();
    site.await_firing("OnceboxPostgresAway").await;
    site.postgres.refuse(false);
    site.await_quiet("OnceboxPostgresAway").await;

    site.nats.stop().await;
    enqueue(&client, &site.env.subject("taken.c"), "waits", 0..10, 0).await;
    client
        .batch_execute("UPDATE oncebox.message_0 SET created_at = created_at - interval '1 hour'")
        .await
        .unwrap();
    site.await_firing("OnceboxNatsAway").await;
    site.await_firing("OnceboxLag").await;
    site.nats.resume().await.unwrap();
    site.await_quiet("OnceboxNatsAway").await;
    site.await_quiet("OnceboxLag").await;

    site.relay.signal("KILL").await;
    site.await_firing("OnceboxRelayDown").await;
    site.await_firing("OnceboxNoRelay").await;
}
