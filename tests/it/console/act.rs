//! Actions: counted first, confirmed by a form of this console, done under a name, stopped.

use oncebox_tests::{TestEnv, eventually};
use serde_json::{Value, json};
use tokio_postgres::Client;

use super::support::{Answer, Console, OPERATOR, READER};
use crate::{
    operator::sagas::SAGAS,
    relay::support::{LIMIT, connect, drain, enqueue, values_of, with},
};

/// Letters of two reasons: more than a page of the first.
const LETTERS: &str = "
INSERT INTO oncebox.dead_letter (scope, tenant, key, subject, headers, payload, deliveries, reason)
SELECT 'shop:pay', '', 'letter-' || n, 'shop.pay', '{}', '', 20, CASE WHEN n <= 250 THEN 'no table' ELSE 'no money' END
FROM generate_series(1, 260) AS n";

/// An outbox with `count` dead messages.
async fn dead(env: &TestEnv, count: i32) -> Client {
    let client = env.pg().await;
    enqueue(&client, &format!("nowhere.{}", env.name()), "dead-", 0..count, 0).await;
    drain(&mut connect(&with(&values_of(env), [("attempts-max", "1")])).await.worker()).await;
    assert_eq!(
        number(&client, "SELECT count(*) FROM oncebox.parked WHERE dead_at IS NOT NULL").await,
        i64::from(count)
    );
    client
}

pub(super) async fn number(client: &Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.unwrap().get(0)
}

fn basic(name: &str, secret: &str) -> String {
    format!("Basic {}", data_encoding::BASE64.encode(format!("{name}:{secret}").as_bytes()))
}

/// The token of the forms of a page.
fn token(page: &Answer) -> &str {
    page.body.split_once(r#"name="token" value=""#).unwrap().1.split('"').next().unwrap()
}

/// The form of a page that shows an action.
pub(super) fn form(page: &Answer, fields: &str) -> String {
    let shown =
        page.body.split_once(r#"name="shown" value=""#).map(|(_, rest)| rest.split('"').next().unwrap());
    let shown = shown.map(|shown| format!("&shown={shown}")).unwrap_or_default();
    let word = page.body.split_once("Type <strong>").map(|(_, rest)| rest.split('<').next().unwrap());
    let word = word.map(|word| format!("&word={word}")).unwrap_or_default();
    format!("token={}&{fields}{shown}{word}", token(page))
}

/// Confirms an action as a user who need not sign in; returns the job's path.
pub(crate) async fn confirm(console: &Console, fields: &str) -> String {
    let page = console.get(&format!("/db/shop/act?{fields}")).await;
    assert_eq!(page.status, 200, "{}", page.body);
    let done = console.ask("POST", "/db/shop/act", &[], &form(&page, fields)).await;
    assert_eq!(done.status, 303, "{}", done.body);
    done.header("location").unwrap().to_owned()
}

/// The end of a job.
pub(crate) async fn end(console: &Console, path: &str) -> Value {
    eventually("the job ends", LIMIT, async || {
        let job = console.api(path).await;
        (!job["end"].is_null()).then(|| job["end"].clone())
    })
    .await
}

#[tokio::test]
async fn an_action_is_counted_first_and_done_under_the_name_of_who_confirms_it() {
    let env = TestEnv::new().await;
    let client = dead(&env, 5).await;
    let console = Console::of(&env, &["--token-file", "{tokens}", "--allow-actions"]).await;
    let (mina, rob) = (basic("mina", OPERATOR), basic("rob", READER));
    let (mina, rob) = ([("authorization", &*mina)], [("authorization", &*rob)]);
    let fields = "kind=dead&action=retry&subject=nowhere.%3E&note=INC-7";
    let path = format!("/db/shop/act?{fields}");
    let page = console.ask("GET", &path, &mina, "").await;
    for part in
        ["would retry <strong>5 messages</strong>", "retry as mina", "oncebox outbox dead retry --subject"]
    {
        assert!(page.body.contains(part), "{part}: {}", page.body);
    }
    let reads = console.ask("GET", &path, &rob, "").await;
    assert!(
        reads.body.contains("only an operator may act") && !reads.body.contains("retry as"),
        "{}",
        reads.body
    );
    let mut foreign = token(&page).to_owned();
    foreign.replace_range(..1, if foreign.starts_with('0') { "1" } else { "0" });
    let of_rob = token(&console.ask("GET", "/settings", &rob, "").await).to_owned();
    for (token, who) in [("", mina), (&*foreign, mina), (&*of_rob, mina), (&*of_rob, rob)] {
        let answer = console.ask("POST", "/db/shop/act", &who, &format!("token={token}&{fields}")).await;
        assert_eq!(answer.status, 403, "{token}");
    }
    assert_eq!(number(&client, "SELECT count(*) FROM oncebox.audit").await, 0, "nothing was done so far");
    let unseen = format!("token={}&{fields}", token(&page));
    let unseen = console.ask("POST", "/db/shop/act", &mina, &unseen).await;
    assert!(unseen.status == 400 && unseen.body.contains("load its page again"), "{}", unseen.body);
    let body = form(&page, fields);
    let done = console.ask("POST", "/db/shop/act", &mina, &body).await;
    assert_eq!(done.status, 303, "{}", done.body);
    let acted = eventually("the audit has it", LIMIT, async || {
        let audit = console.ask("GET", "/api/v1/databases/shop/audit", &mina, "").await;
        let audit: Value = serde_json::from_str(&audit.body).unwrap();
        audit["rows"].as_array().filter(|rows| rows.len() == 5).cloned()
    })
    .await;
    for row in &acted {
        assert_eq!(
            [&row["action"], &row["operator"], &row["note"]],
            [&json!("retry"), &json!("mina"), &json!("INC-7")]
        );
    }
    // The page was loaded before; the same form once more finds nothing.
    let again = console.ask("POST", "/db/shop/act", &mina, &body).await;
    assert!(
        again.status == 409 && again.body.contains("none of the shown rows is there any more"),
        "{}",
        again.body
    );
}

#[tokio::test]
async fn all_that_match_are_acted_on_and_not_only_the_page() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    client.batch_execute(LETTERS).await.unwrap();
    let console = Console::of(&env, &["--allow-actions", "--by", "desk"]).await;
    let list = console.api("/databases/shop/set-aside?kind=dead-letters").await;
    assert_eq!(
        (list["rows"].as_array().unwrap().len(), &list["groups"][0]["rows"]),
        (100, &json!(250)),
        "{list}"
    );
    // Page by page, each letter once.
    let (mut keys, mut after) = (Vec::new(), Some(String::new()));
    while let Some(place) = after {
        let page = console.api(&format!("/databases/shop/set-aside?kind=dead-letters&after={place}")).await;
        keys.extend(
            page["rows"].as_array().unwrap().iter().map(|row| row["key"].as_str().unwrap().to_owned()),
        );
        after = page["after"].as_str().map(str::to_owned);
    }
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 260);
    let page = console.get("/db/shop/set-aside?kind=dead-letters&reason=NO+TABLE").await;
    let line = "oncebox inbox dead list --reason 'NO TABLE' --database shop";
    assert!(page.body.contains(line), "{}", page.body);
    assert!(page.body.contains("discard all that match"), "{}", page.body);
    let job = confirm(&console, "kind=dead-letters&action=discard&reason=NO+TABLE").await;
    assert_eq!(end(&console, &job).await, json!({ "done": "discarded 250 dead letters" }));
    // Chosen ones.
    let job = confirm(&console, "kind=dead-letters&action=discard&key=letter-251&key=letter-252").await;
    assert_eq!(end(&console, &job).await, json!({ "done": "discarded 2 dead letters" }));
    assert_eq!(number(&client, "SELECT count(*) FROM oncebox.dead_letter").await, 8);
    let audited = "SELECT count(*) FROM oncebox.audit WHERE operator = 'desk' AND action = 'discard'";
    assert_eq!(number(&client, audited).await, 252);
}

#[tokio::test]
async fn a_job_shows_how_far_it_is_and_can_be_stopped() {
    let env = TestEnv::new().await;
    let client = dead(&env, 40).await;
    let console = Console::of(&env, &["--allow-actions"]).await;
    let path = confirm(&console, "kind=dead&action=retry&all=1&rate=2").await;
    let running = eventually("some are done", LIMIT, async || {
        let job = console.api(&path).await;
        (job["done"].as_u64().unwrap() >= 2).then_some(job)
    })
    .await;
    assert_eq!((&running["expected"], &running["end"]), (&json!(40), &Value::Null));
    let page = console.get(&path).await;
    assert!(page.body.contains("<progress"), "{}", page.body);
    let stop = format!("{path}/stop");
    assert_eq!(console.ask("POST", &stop, &[], "token=no").await.status, 403);
    let stopped = console.ask("POST", &stop, &[], &format!("token={}", token(&page))).await;
    assert_eq!(stopped.status, 303);
    assert_eq!(end(&console, &path).await, json!("stopped"));
    let left = number(&client, "SELECT count(*) FROM oncebox.parked WHERE dead_at IS NOT NULL").await;
    let acted = number(&client, "SELECT count(*) FROM oncebox.audit").await;
    assert!(left > 0 && left + acted == 40, "{left} left, {acted} in the audit");
}

#[tokio::test]
async fn a_console_changes_nothing_unless_it_is_told_that_it_may() {
    let env = TestEnv::new().await;
    let client = dead(&env, 1).await;
    client.batch_execute(SAGAS).await.unwrap();
    let console = Console::of(&env, &[]).await;
    for path in
        ["/db/shop/set-aside?kind=dead", "/db/shop/sagas", "/db/shop/saga?key=2:order", "/db/shop/pauses"]
    {
        let page = console.get(path).await;
        assert!(
            !page.body.contains("/act?") && page.body.contains("--allow-actions"),
            "{path}: {}",
            page.body
        );
    }
    let document = json!({ "kind": "dead", "action": "retry", "all": true }).to_string();
    let headers = [("content-type", "application/json")];
    let answer = console.ask("POST", "/api/v1/databases/shop/act", &headers, &document).await;
    assert!(answer.status == 403 && answer.body.contains("--allow-actions"), "{}", answer.body);
    assert_eq!(number(&client, "SELECT count(*) FROM oncebox.audit").await, 0);
}

#[tokio::test]
async fn a_program_acts_through_the_same_code_as_a_page() {
    let env = TestEnv::new().await;
    let client = dead(&env, 3).await;
    let console = Console::of(&env, &["--allow-actions"]).await;
    let path = "/api/v1/databases/shop/act";
    let counted = console.api("/databases/shop/act?kind=dead&action=discard&all=1").await;
    assert_eq!(counted["count"], 3, "{counted}");
    let document = json!({ "kind": "dead", "action": "discard", "key": ["dead-0", "dead-1"], "note": "x" });
    let plain = [("content-type", "text/plain")];
    let answer = console.ask("POST", path, &plain, &document.to_string()).await;
    assert_eq!(answer.status, 400, "a form of another site can send text: {}", answer.body);
    let typed = [("content-type", "application/json")];
    for wrong in [json!({ "kind": "dead", "action": "discard" }), json!({ "kind": "dead" }), json!([])] {
        assert_eq!(console.ask("POST", path, &typed, &wrong.to_string()).await.status, 400, "{wrong}");
    }
    let job = console.ask("POST", path, &typed, &document.to_string()).await;
    assert_eq!(job.status, 200, "{}", job.body);
    let id = serde_json::from_str::<Value>(&job.body).unwrap()["id"].clone();
    assert_eq!(end(&console, &format!("/jobs/{id}")).await, json!({ "done": "discarded 2 messages" }));
    assert_eq!(number(&client, "SELECT count(*) FROM oncebox.parked").await, 1);
}

#[tokio::test]
async fn sagas_pauses_and_replays_are_acted_on() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    client.batch_execute(SAGAS).await.unwrap();
    let console = Console::of(&env, &["--allow-actions"]).await;
    let saga = console.get("/db/shop/saga?key=2:order").await;
    for part in ["ship is failed", "charge is remaining", "retry ship", "skip ship", "abandon"] {
        assert!(saga.body.contains(part), "{part}: {}", saga.body);
    }
    let page = console.get("/db/shop/act?kind=sagas&action=abandon&key=2:order").await;
    assert!(page.body.contains("nothing is undone"), "its consequence is told first: {}", page.body);
    assert!(page.body.contains(r#"name="shown""#), "and the saga that is meant: {}", page.body);
    for (fields, told) in [
        ("kind=sagas&action=retry&key=2:order", "asked for another attempt of 1 saga"),
        ("kind=sagas&action=skip&key=6:refund&step=pay", "asked to go on with 1 saga"),
        ("kind=sagas&action=abandon&key=3:order", "abandoned 1 saga"),
        ("kind=pauses&action=pause&stream=&subject=%3E&for=2h", "paused delivery"),
        ("kind=pauses&action=resume&subject=%3E", "resumed delivery"),
    ] {
        let job = confirm(&console, fields).await;
        assert_eq!(end(&console, &job).await, json!({ "done": told }), "{fields}");
    }
    // Refused before it begins, not in the job.
    client.batch_execute("SELECT oncebox.enqueue('k', 'orders.placed', 'p')").await.unwrap();
    let (path, typed) = ("/api/v1/databases/shop/act", [("content-type", "application/json")]);
    let unseen = json!({ "kind": "pauses", "action": "pause", "subject": "ordres.placed" }).to_string();
    let refused = console.ask("POST", path, &typed, &unseen).await;
    assert!(refused.status == 409 && refused.body.contains("there are orders.placed"), "{}", refused.body);
    let meant = json!({ "kind": "pauses", "action": "pause", "subject": "ordres.placed", "unseen": true });
    let taken = console.ask("POST", path, &typed, &meant.to_string()).await;
    assert_eq!(taken.status, 200, "{}", taken.body);
    let id = serde_json::from_str::<Value>(&taken.body).unwrap()["id"].clone();
    end(&console, &format!("/jobs/{id}")).await;
    client
        .batch_execute("SELECT oncebox.resume_delivery('subject', 'ordres.placed', 'mina', NULL)")
        .await
        .unwrap();
    let job = confirm(&console, "kind=pauses&action=resume&subject=%3E").await;
    assert!(end(&console, &job).await["failed"].as_str().unwrap().contains("not paused"));
    let actions = "SELECT string_agg(action, ' ' ORDER BY id) FROM oncebox.audit";
    let actions: String = client.query_one(actions, &[]).await.unwrap().get(0);
    assert_eq!(actions, "retry skip abandon pause resume pause resume");
}

#[tokio::test]
async fn a_discard_waits_for_its_word_and_can_be_undone() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    client.batch_execute(LETTERS).await.unwrap();
    let console = Console::of(&env, &["--allow-actions", "--by", "desk"]).await;
    let fields = "kind=dead-letters&action=discard&reason=no+money";
    let page = console.get(&format!("/db/shop/act?{fields}")).await;
    let filled = form(&page, fields);
    let (without, word) = filled.rsplit_once("&word=").unwrap();
    assert_eq!(word, "discard");
    let letters = async || number(&client, "SELECT count(*) FROM oncebox.dead_letter").await;
    for wrong in [without.to_owned(), format!("{without}&word=yes")] {
        let answer = console.ask("POST", "/db/shop/act", &[], &wrong).await;
        assert!(answer.status == 400 && answer.body.contains("discard was not typed"), "{}", answer.body);
        assert_eq!(letters().await, 260);
    }
    let job = confirm(&console, fields).await;
    assert_eq!(end(&console, &job).await, json!({ "done": "discarded 10 dead letters" }));
    assert_eq!(letters().await, 250);
    let id = console.api(&job).await["undo"].as_u64().unwrap();
    let undo = format!("kind=audit&action=undo&id={id}");
    let link = format!("/db/shop/act?{}", undo.replace('&', "&amp;"));
    for place in [&*job, "/db/shop/audit"] {
        let page = console.get(place).await;
        assert!(page.body.contains(&link), "{link}: {}", page.body);
    }
    let page = console.get(&format!("/db/shop/act?{undo}")).await;
    assert!(
        page.body.contains("<strong>10 rows</strong>") && page.body.contains("letter-251"),
        "{}",
        page.body
    );
    let job = confirm(&console, &undo).await;
    assert_eq!(end(&console, &job).await, json!({ "done": "brought back 10 rows" }));
    assert_eq!(letters().await, 260);
    let page = console.get(&format!("/db/shop/act?{undo}")).await;
    let is_refused = page.body.contains("desk brought it back at") && !page.body.contains("undo as desk");
    assert!(is_refused, "{}", page.body);
}
