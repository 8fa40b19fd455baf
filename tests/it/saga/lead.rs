//! The commands that check, test, apply and lead sagas of files, as an operator types them.

use std::{fs, path::PathBuf};

use oncebox_tests::{Program, eventually, oncebox};
use serde_json::Value;

use super::site::{LIMIT, STOCK, Site, kill, order, supervise};

const ORDER: &str = include_str!("../../../saga/src/file/order.toml");
const SCENARIOS: &str = include_str!("../../../saga/src/file/order.scenarios.toml");
const FULFILMENT: &str = include_str!("../../../examples/src/fulfilment/order.toml");
const ORDERS: usize = 36;

/// A file for one test.
pub(super) struct Written(PathBuf);

impl Written {
    pub(super) fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("oncebox-{}-{name}", std::process::id()));
        fs::write(&path, text).unwrap();
        Self(path)
    }

    pub(super) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

const NOTHING: &[(&str, &str)] = &[];

#[tokio::test]
async fn check_shows_a_file_or_every_mistake_with_its_line() {
    let good = Written::new("check-good.toml", ORDER);
    let (code, output, _) = oncebox(&["saga", "check", good.path()], NOTHING).await.unwrap();
    assert_eq!(code, 0);
    assert!(output.ends_with("saga \"order\", version 1, 4 steps: reserve, pay, notify, ship\n"), "{output}");
    for (form, begins) in [("--mermaid", "flowchart LR"), ("--svg", "<svg"), ("--json", "{\"file\":")] {
        let (code, output, _) = oncebox(&["saga", "check", form, good.path()], NOTHING).await.unwrap();
        assert!(code == 0 && output.starts_with(begins), "{form}: {output}");
    }
    let wrong = ORDER.replacen("subject = \"stock.reserve\"", "subjet = \"stock.*\"", 1);
    let wrong = Written::new("check-wrong.toml", &wrong.replacen("\"60s\"", "\"soon\"", 1));
    let (code, output, _) = oncebox(&["saga", "check", wrong.path(), good.path()], NOTHING).await.unwrap();
    let path = wrong.path();
    assert_eq!(code, 1);
    for line in [
        format!("{path}:11: step \"reserve\" needs subject"),
        format!("{path}:13: step \"reserve\" has no field \"subjet\""),
        format!("{path}:15: step \"reserve\": deadline is a time"),
    ] {
        assert!(output.contains(&line), "{line} in\n{output}");
    }
    let again =
        ORDER.replacen("\"/data/order\"", "\"/data/odrer\"", 1).replacen("version = 1", "version = 0", 1);
    let again = Written::new("check-again.toml", &again);
    let json = ["saga", "check", "--json", again.path(), wrong.path()];
    let (code, output, _) = oncebox(&json, NOTHING).await.unwrap();
    let mistakes: Vec<Value> = output.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |path: &str, line: u64| {
        let found = mistakes.iter().find(|one| one["file"] == path && one["line"] == line);
        found.unwrap_or_else(|| panic!("{path}:{line} in {output}"))
    };
    assert_eq!((code, &of(again.path(), 3)["problem"]), (1, &"the file: version is 1 to 65535".into()));
    assert_eq!(of(again.path(), 3)["remedy"], Value::Null);
    let needs = of(path, 11);
    assert_eq!(needs["problem"], "step \"reserve\" needs subject");
    assert!(needs["remedy"].as_str().is_some_and(|remedy| remedy.starts_with("subject = ")), "{needs}");
    let twice = ["saga", "check", good.path(), good.path()];
    let (code, output, _) = oncebox(&twice, NOTHING).await.unwrap();
    assert!(code == 1 && output.contains("is in"), "{output}");
    let (code, output, _) = oncebox(&["saga", "check", "/nowhere.toml"], NOTHING).await.unwrap();
    assert!(code == 1 && output.contains("/nowhere.toml:1: cannot be read"), "{output}");
    let (code, output, _) = oncebox(&["saga", "schema"], NOTHING).await.unwrap();
    assert_eq!(code, 0);
    serde_json::from_str::<Value>(&output).unwrap();
}

#[tokio::test]
async fn test_runs_scenarios_and_fails_when_one_ends_otherwise() {
    let saga = Written::new("test-order.toml", ORDER);
    let good = Written::new("test-good.toml", SCENARIOS);
    let (code, output, _) = oncebox(&["saga", "test", saga.path(), good.path()], NOTHING).await.unwrap();
    assert_eq!(code, 0, "{output}");
    for line in ["ok: all goes well (completed)", "  -> ship shipping.ship", "  <- pay rejected {\"why\":"] {
        assert!(output.contains(line), "{line} in\n{output}");
    }
    let bad = Written::new("test-bad.toml", &SCENARIOS.replace("ends = \"completed\"", "ends = \"stuck\""));
    let (code, output, _) = oncebox(&["saga", "test", saga.path(), bad.path()], NOTHING).await.unwrap();
    assert!(code == 1 && output.contains("  it is completed, not stuck"), "{output}");
    let json = ["saga", "test", "--json", saga.path(), bad.path()];
    let (code, output, _) = oncebox(&json, NOTHING).await.unwrap();
    let first: Value = serde_json::from_str(output.lines().next().unwrap()).unwrap();
    assert!(code == 1 && first["problem"] == "it is completed, not stuck", "{output}");
}

/// Orders led by a file, started in SQL, while the leading processes, relays, participants and
/// nats-server are killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_order_of_a_file_is_fulfilled_or_undone_whoever_is_killed() {
    let mut site = Site::start(&[]).await;
    let file = FULFILMENT.replace("subject = \"", "subject = \"site.");
    let file = Written::new("lead.toml", &file);
    let mut environment = site.environment(&site.shop);
    environment.retain(|(name, _)| ["DATABASE_URL", "NATS_URL"].contains(name));
    let lead = ["saga", "run", "--reply-to", "site.fulfilment.replies", file.path()];
    let mut leaders = Vec::new();
    for _ in 0..2 {
        leaders.push(Program::start("oncebox", &lead, &environment).await.unwrap());
    }
    let client = site.shop.pg().await;
    let applied = "SELECT count(*) FROM oncebox.saga_definition WHERE plan IS NOT NULL";
    eventually("the file is applied", LIMIT, async || {
        (client.query_one(applied, &[]).await.unwrap().get::<_, i64>(0) == 1).then_some(())
    })
    .await;
    for number in 0..ORDERS {
        let order = order(number);
        let sql = "SELECT is_new FROM oncebox.start_saga('fulfilment', $1, $2::text::jsonb)";
        let id = order["id"].as_str().unwrap();
        for again in [false, true] {
            let row = client.query_one(sql, &[&id, &order.to_string()]).await.unwrap();
            assert_eq!(row.get::<_, bool>(0), !again);
        }
        for process in leaders.iter_mut().chain(&mut site.participants) {
            supervise(process).await;
        }
        match number % 12 {
            2 => kill(&mut site.participants[number % 3]).await,
            5 => kill(&mut site.relays[number % 4]).await,
            8 => kill(&mut leaders[1]).await,
            11 if number < 12 => site.nats.restart().await.unwrap(),
            11 => kill(&mut leaders[0]).await,
            _ => {}
        }
    }
    let count = async |state: &str| {
        let sql = "SELECT count(*) FROM oncebox.saga WHERE state = $1";
        usize::try_from(client.query_one(sql, &[&state]).await.unwrap().get::<_, i64>(0)).unwrap()
    };
    eventually("every saga has ended", LIMIT, async || {
        for process in leaders.iter_mut().chain(&mut site.participants) {
            supervise(process).await;
        }
        (count("completed").await + count("compensated").await == ORDERS).then_some(())
    })
    .await;
    let sent = site.balance().await;
    assert_eq!(count("completed").await, sent.len());
    assert!((1..=usize::try_from(STOCK).unwrap()).contains(&sent.len()), "{sent:?}");
    for leader in &mut leaders {
        leader.stop().await.unwrap();
    }
    site.stop().await;
}

/// Without a stream for the answers, without the schema: each error names the remedy.
#[tokio::test]
async fn a_leader_that_cannot_start_says_what_is_missing() {
    let env = oncebox_tests::TestEnv::new().await;
    let file = Written::new("start.toml", ORDER);
    let environment =
        [("DATABASE_URL", env.database_url().to_owned()), ("NATS_URL", env.nats_url().to_owned())];
    let nobody = env.subject("nobody");
    let (code, _, log) =
        oncebox(&["saga", "run", "--reply-to", &nobody, file.path()], &environment).await.unwrap();
    assert!(code == 1 && log.contains("no stream takes the answers") && log.contains("--stream"), "{log}");
    let (code, output, _) = oncebox(&["saga", "apply", file.path()], &environment).await.unwrap();
    assert_eq!((code, &*output), (0, "applied \"order\", version 1\n"));
    let start = ["saga", "start", "order", "o-1", r#"{"order": 17, "cents": 1234567890123456789012}"#];
    for said in ["started o-1:order\n", "was started before: o-1:order\n"] {
        let (code, output, _) = oncebox(&start, &environment).await.unwrap();
        assert_eq!((code, &*output), (0, said));
    }
    // Its participants answer where they were asked to: their orchestrator must not stop listening
    // there.
    let elsewhere = ["--reply-to", &nobody, file.path()];
    let newer = Written::new("newer.toml", &ORDER.replace("version = 1", "version = 2"));
    for (command, file) in [("apply", &file), ("run", &file), ("apply", &newer)] {
        let arguments = ["saga", command, "--reply-to", &nobody, file.path()];
        let (code, _, log) = oncebox(&arguments, &environment).await.unwrap();
        assert_eq!(code, 1, "{command}: {log}");
        let said =
            "1 of its orchestrator in flight have participants that answer on subject \"sagas.replies\"";
        assert!(log.replace("\\\"", "\"").contains(said), "{command}: {log}");
        assert!(log.contains("--reply-to sagas.replies"), "{command}: {log}");
    }
    let sent = "SELECT convert_from(payload, 'UTF8') FROM oncebox.message WHERE key = 'o-1:order:pay'";
    let sent: String = env.pg().await.query_one(sent, &[]).await.unwrap().get(0);
    assert!(sent.contains("1234567890123456789012"), "no digit is lost: {sent}");
    let start = ["saga", "start", "order", "o-2", r#"{"order": 17}"#];
    let (code, _, log) = oncebox(&start, &environment).await.unwrap();
    assert!(code == 1 && log.contains("without field /cents"), "{log}");
    let abandon = ["saga", "abandon", "--all", "--by", "mina"];
    let (code, _, log) = oncebox(&abandon, &environment).await.unwrap();
    assert_eq!(code, 0, "{log}");
    let (code, _, log) = oncebox(&[&["saga", "apply"], &elsewhere[..]].concat(), &environment).await.unwrap();
    assert_eq!(code, 0, "nobody waits for an answer: {log}");
    let wrong = Written::new("wrong.toml", &ORDER.replace("version = 1", "version = 0"));
    let (code, _, log) = oncebox(&["saga", "apply", wrong.path()], &environment).await.unwrap();
    assert!(code == 64 && log.contains(":3: the file: version is 1 to 65535"), "{log}");
}

/// The page's own file and scenarios, as a reader copies them.
#[tokio::test]
async fn the_page_has_a_file_and_scenarios_that_work() {
    let page = include_str!("../../../docs/saga-files.md");
    let blocks: Vec<&str> =
        page.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    let saga = Written::new("page.toml", blocks[0]);
    let scenarios = Written::new("page-scenarios.toml", blocks[1]);
    let (code, output, _) = oncebox(&["saga", "test", saga.path(), scenarios.path()], NOTHING).await.unwrap();
    assert_eq!(code, 0, "{output}");
}
