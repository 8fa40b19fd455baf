//! `oncebox proof`: each gap of a time is named, and none is found once all are mended.

use std::fs;

use data_encoding::BASE64;
use oncebox_tests::TestEnv;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use serde_json::{Value, json};
use tokio_postgres::Client;

use super::verify::{config, ids_are_forgotten};
use crate::{
    console::support::Console,
    relay::{
        process::{run, run_ok},
        support::{connect, drain, fresh_stream, values},
    },
};

async fn enqueue(client: &Client, keys: &[&str], subject: &str) {
    let sql = "SELECT oncebox.enqueue(k, $2, 'p') FROM unnest($1::text[]) AS k";
    client.execute(sql, &[&keys, &subject]).await.unwrap();
}

/// As a consumer does, of a tenant or none.
async fn settle(client: &Client, key: &str, tenant: &str, status: &str) {
    let sql = format!(
        "BEGIN DEFERRABLE; SELECT oncebox.claim('billing:charge', '{key}', 'p', '{tenant}');
         SELECT oncebox.settle('billing:charge', '{key}', tenant => '{tenant}', status => '{status}'); COMMIT"
    );
    client.batch_execute(&sql).await.unwrap();
}

async fn prove(env: &TestEnv, more: &[&str]) -> (i32, Value) {
    let arguments = [&["proof", "--json", "--nats-url", env.nats_url()], more].concat();
    let (code, output, log) = run(env.database_url(), &arguments).await;
    (code, serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {output}{log}")))
}

/// The row of a list, with these values.
fn row<'a>(proof: &'a Value, list: &str, name: &str, value: &str) -> &'a Value {
    let mut rows = proof[list].as_array().unwrap().iter();
    rows.find(|row| row[name] == value).unwrap_or_else(|| panic!("{name} {value}: {proof}"))
}

#[tokio::test]
async fn each_gap_of_a_time_is_named_until_it_is_mended() {
    let env = TestEnv::new().await;
    let stream = fresh_stream(env.nats_url(), config(&env)).await;
    let client = env.pg().await;
    let [orders, mails] = [env.subject("orders.placed"), env.subject("mails.sent")];
    client.batch_execute("SELECT oncebox.register_scope('billing:charge')").await.unwrap();
    let mut worker = connect(&values(env.database_url(), env.nats_url())).await.worker();
    enqueue(&client, &["before"], &orders).await;
    drain(&mut worker).await;
    let since: String = client.query_one("SELECT clock_timestamp()::text", &[]).await.unwrap().get(0);
    let since = since.replace(' ', "T").split('+').next().unwrap().to_owned() + "Z";
    enqueue(&client, &["handled", "of-tenant", "refused", "lost", "forgotten"], &orders).await;
    enqueue(&client, &["mail"], &mails).await;
    drain(&mut worker).await;
    for (key, tenant, status) in
        [("handled", "", "completed"), ("of-tenant", "acme", "completed"), ("refused", "", "rejected")]
    {
        settle(&client, key, tenant, status).await;
    }
    settle(&client, "lost", "", "completed").await;
    for sequence in 1..=7 {
        let stored = stream.get_raw_message(sequence).await.unwrap();
        if stored.headers.get("Idempotency-Key").is_some_and(|key| key.as_str() == "lost") {
            stream.delete_message(sequence).await.unwrap();
        }
    }
    enqueue(&client, &["waiting"], &orders).await;

    let (code, proof) = prove(&env, &["--since", &since]).await;
    assert_eq!((code, &proof["is_whole"]), (1, &json!(false)), "{proof}");
    let of = row(&proof, "subjects", "subject", &orders);
    assert_eq!((&of["enqueued"], &of["stored"], &of["waiting"]), (&json!(6), &json!(5), &json!(1)), "{of}");
    assert_eq!(of["gap"], json!(["waiting"]));
    let of = row(&proof, "streams", "stream", env.name());
    assert_eq!(
        (&of["messages"], &of["missing"], &of["gap"]),
        (&json!(6), &json!(1), &json!(["lost"])),
        "{of}"
    );
    let of = row(&proof, "inboxes", "inbox", "billing:charge");
    assert_eq!(
        (&of["stored"], &of["handled"], &of["rejected"], &of["missing"], &of["gap"]),
        (&json!(5), &json!(3), &json!(1), &json!(1), &json!(["forgotten"])),
        "{of}"
    );
    // No inbox handles mails in this database, until an operator expects it.
    assert_eq!(proof["inboxes"].as_array().unwrap().len(), 1, "{proof}");
    let expected = ["--handled-by", "mailer:send", "--within", "1h", "--unseen"];
    run_ok(env.database_url(), &[&["expect", "add", "--subject", &mails][..], &expected].concat()).await;
    let (_, proof) = prove(&env, &["--since", &since]).await;
    assert_eq!(row(&proof, "inboxes", "inbox", "mailer:send")["gap"], json!(["mail"]), "{proof}");
    let (code, earlier) = prove(&env, &["--since", "2020-01-31", "--until", &since]).await;
    assert_eq!((code, &earlier["subjects"][0]["enqueued"]), (0, &json!(1)), "{earlier}");
    assert_eq!(earlier["inboxes"], json!([]), "no inbox had one of that time: {earlier}");

    let console = Console::of(&env, &[]).await;
    let page = console.get(&format!("/db/shop/proof?since={since}")).await;
    for key in ["waiting", "lost", "forgotten"] {
        assert!(page.body.contains(&format!("href=\"/key?key={key}\"")), "{key}: {}", page.body);
    }
    let shown = console.api(&format!("/databases/shop/proof?since={since}")).await;
    assert_eq!(shown["proof"]["subjects"], proof["subjects"]);
    assert_eq!(console.get("/db/shop/proof?since=2020-01-31&until=2020-01-30").await.status, 400);
    console.stop().await;

    settle(&client, "forgotten", "", "completed").await;
    ids_are_forgotten(&env, &stream).await;
    let resend = ["outbox", "verify", "--nats-url", env.nats_url(), "--stream", env.name(), "--resend"];
    run_ok(env.database_url(), &resend).await;
    drain(&mut worker).await;
    settle(&client, "waiting", "", "completed").await;
    let no_more = ["expect", "remove", "--subject", &mails, "--handled-by", "mailer:send"];
    run_ok(env.database_url(), &no_more).await;
    let told = run_ok(env.database_url(), &["proof", "--nats-url", env.nats_url(), "--since", &since]).await;
    assert!(told.contains("There is no gap") && told.contains("inboxes of other databases"), "{told}");
}

#[tokio::test]
async fn an_auditor_can_check_who_made_a_proof() {
    let env = TestEnv::new().await;
    let files = tempfile::tempdir().unwrap();
    let path = files.path().join("key.pem");
    let sign = ["--since", "1h", "--sign", path.to_str().unwrap()];
    let arguments = [&["proof"][..], &sign].concat();
    for wrong in ["", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"] {
        fs::write(&path, wrong).unwrap();
        let (code, output, log) = run(env.database_url(), &arguments).await;
        assert!(code == 64 && output.is_empty() && log.contains("the key in"), "{code} {output} {log}");
    }
    let (code, _, log) = run(env.database_url(), &["proof", "--since", "1h", "--until", "2h"]).await;
    assert!(code == 64 && log.contains("not before --until"), "{code} {log}");
    let key = Ed25519KeyPair::generate_pkcs8(&ring::rand::SystemRandom::new()).unwrap();
    let pem = BASE64.encode(key.as_ref());
    fs::write(&path, format!("-----BEGIN PRIVATE KEY-----\n{pem}\n-----END PRIVATE KEY-----\n")).unwrap();
    let envelope: Value = serde_json::from_str(&run_ok(env.database_url(), &arguments).await).unwrap();
    let bytes = |value: &Value| BASE64.decode(value.as_str().unwrap().as_bytes()).unwrap();
    let (kind, document) = (envelope["payloadType"].as_str().unwrap(), bytes(&envelope["payload"]));
    let signed =
        [format!("DSSEv1 {} {kind} {} ", kind.len(), document.len()).into_bytes(), document.clone()].concat();
    let public = Ed25519KeyPair::from_pkcs8(key.as_ref()).unwrap().public_key().as_ref().to_vec();
    let check = |signed: &[u8]| {
        UnparsedPublicKey::new(&ED25519, &public).verify(signed, &bytes(&envelope["signatures"][0]["sig"]))
    };
    check(&signed).unwrap();
    check(&[&signed[..], b" "].concat()).unwrap_err();
    let proof: Value = serde_json::from_slice(&document).unwrap();
    assert_eq!((&proof["format"], &proof["is_whole"]), (&json!("oncebox-proof-1"), &json!(true)), "{proof}");
    assert!(proof["not_proven"].to_string().contains("NATS is not configured"), "{proof}");
}
