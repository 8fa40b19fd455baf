//! Sagas that no process leads: `status`, `doctor` and `why` say which, and how they go on.

use oncebox_tests::{Program, TestEnv, eventually};
use serde_json::Value;

use super::{lead::Written, site::LIMIT};
use crate::{
    operator::{doctor::run_with, status},
    relay::process::run_ok,
    why::support::{assert_held, why},
};

const ORDER: &str = include_str!("../../../saga/src/file/order.toml");
const LONG_AGO: &str = "UPDATE oncebox.saga SET created_at = created_at - interval '5 minutes';
                        UPDATE oncebox.saga_leader SET led_at = led_at - interval '5 minutes'";

/// The findings of a status about sagas.
async fn found(env: &TestEnv) -> Vec<String> {
    let status = status::status(env.database_url()).await;
    let all = status["findings"].as_array().unwrap().iter().map(Value::to_string);
    all.filter(|text| text.contains("sagas of type") || text.contains("saga of type")).collect()
}

#[tokio::test]
async fn a_version_without_a_leader_is_named_until_one_leads_it() {
    let env = TestEnv::new().await;
    env.stream().await;
    let (client, url, replies) = (env.pg().await, env.database_url(), env.subject("replies"));
    let first = Written::new("unled-1.toml", ORDER);
    let second = Written::new("unled-2.toml", &ORDER.replace("version = 1", "version = 2"));
    run_ok(url, &["saga", "apply", "--reply-to", &replies, first.path()]).await;
    for id in ["o-1", "o-2"] {
        run_ok(url, &["saga", "start", "order", id, r#"{"order": 17, "cents": 500}"#]).await;
    }
    assert_eq!(found(&env).await, [""; 0], "a leader may be about to start");
    client.batch_execute(LONG_AGO).await.unwrap();
    let [never] = &found(&env).await[..] else { panic!("one finding") };
    let (what, command) =
        ("2 sagas of type order, version 1, wait", "`oncebox saga run order.toml --reply-to");
    assert!(never.contains(what) && never.contains("no process has ever led this version"), "{never}");
    assert!(never.contains(command) && never.contains(&replies), "{never}");

    let environment = [("DATABASE_URL", url.to_owned()), ("NATS_URL", env.nats_url().to_owned())];
    let lead = async |files: &[&str]| {
        let run = [&["saga", "run", "--reply-to", &replies], files].concat();
        Program::start("oncebox", &run, &environment).await.unwrap()
    };
    let mut leader = lead(&[second.path()]).await;
    let only = async || found(&env).await.pop().filter(|text| text.contains("only version 2 is led"));
    eventually("the other version is led", LIMIT, only).await;
    let asked = environment.each_ref().map(|(name, value)| (*name, value.as_str()));
    let (_, doctor, _) = run_with(&["doctor"], &asked).await;
    assert!(doctor.contains("[saga-leader]") && doctor.contains(what), "{doctor}");
    let (_, told) = why(url, env.nats_url(), &["o-1:order"]).await;
    let of_saga = told["answers"].as_array().unwrap().iter().find(|answer| answer["key"] == "o-1:order");
    assert_held(of_saga.unwrap(), "saga", &[what], &["oncebox saga run order.toml"]);
    leader.stop().await.unwrap();

    let mut both = lead(&[first.path(), second.path()]).await;
    eventually("both are led", LIMIT, async || found(&env).await.is_empty().then_some(())).await;
    both.stop().await.unwrap();
    client.batch_execute(LONG_AGO).await.unwrap();
    let [again] = &found(&env).await[..] else { panic!("one finding") };
    assert!(again.contains("no process has led this version since"), "{again}");
    run_ok(url, &["saga", "abandon", "--all", "--by", "mina"]).await;
    assert_eq!(found(&env).await, [""; 0], "none is under way");
}
