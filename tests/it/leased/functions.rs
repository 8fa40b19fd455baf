//! Leased mode as SQL functions: alone, and on the keys of an inbox in Rust.

use oncebox_inbox::{Outcome, Verdict};
use oncebox_tests::TestEnv;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_postgres::{Client, error::SqlState};

use crate::{
    inbox::support::{SCOPE, count, dead_letters, effects, environment, message, replayed},
    leased::support::{LEASE, Mood, Pays, age_effects, builder, expire, leased, receipt, setup},
};

/// The payload of `message(_, 7)`.
const PAYLOAD: &str = r#"{"n":7}"#;
const FIRST: u128 = 1;
const SECOND: u128 = 2;

/// An owner of key `k`, whose lease lasts 900 ms.
struct Owner<'a> {
    client: &'a Client,
    owner: uuid::Uuid,
    epoch: i64,
}

impl<'a> Owner<'a> {
    const fn new(client: &'a Client, number: u128) -> Self {
        Self { client, owner: uuid::Uuid::from_u128(number), epoch: 0 }
    }

    async fn row(&self, call: &str) -> Result<Value, tokio_postgres::Error> {
        let result = if call.contains("finish_leased") { "'null'" } else { "to_jsonb(r)::text" };
        let sql = format!("SELECT {result} FROM {call} AS r")
            .replace("{id}", &format!("'{SCOPE}', 'k', '{}'", self.owner))
            .replace("{held}", &format!("'{SCOPE}', 'k', '{}', {}", self.owner, self.epoch));
        Ok(serde_json::from_str(self.client.query_one(&sql, &[]).await?.get(0)).unwrap())
    }

    async fn ask(&self, call: &str) -> Value {
        self.row(call).await.unwrap_or_else(|error| panic!("{call}: {error:?}"))
    }

    async fn claim(&mut self) -> String {
        self.claim_of(PAYLOAD, false).await["answer"].as_str().unwrap().to_owned()
    }

    async fn claim_of(&mut self, payload: &str, is_alone: bool) -> Value {
        let owner = self.owner;
        let call = format!(
            "oncebox.claim_leased('{SCOPE}', 'k', '{payload}', '{owner}', '900 ms', is_alone => {is_alone})"
        );
        let claimed = self.ask(&call).await;
        self.epoch = claimed["epoch"].as_i64().unwrap_or(self.epoch);
        claimed
    }

    async fn begin(&self) -> String {
        let begun = self.ask("oncebox.begin_effect({held}, '900 ms', 'charge')").await;
        begun["answer"].as_str().unwrap().to_owned()
    }

    async fn refused(&self, call: &str) -> (String, SqlState) {
        let error = self.row(call).await.expect_err(call);
        let error = error.as_db_error().unwrap();
        (error.message().to_owned(), error.code().clone())
    }
}

async fn fresh() -> (TestEnv, Client, Client) {
    let env = environment().await;
    let (one, other) = (env.pg().await, env.pg().await);
    one.batch_execute(&format!("SELECT oncebox.register_scope('{SCOPE}', mode => 'lease')")).await.unwrap();
    (env, one, other)
}

#[tokio::test]
async fn an_effect_goes_on_where_its_owner_has_left_it() {
    let (env, one, other) = fresh().await;
    let (mut first, mut second) = (Owner::new(&one, FIRST), Owner::new(&other, SECOND));
    assert_eq!(first.claim().await, "new");
    assert_eq!(second.claim().await, "in_flight");
    assert_eq!(second.claim_of("other", false).await["answer"], "mismatch");
    assert_eq!(first.begin().await, "begun");
    let again = first.ask("oncebox.begin_effect({held}, '900 ms', 'charge')").await;
    assert_eq!((&again["answer"], &again["is_own"]), (&json!("open"), &json!(true)));
    expire(&env).await;
    assert_eq!(second.claim().await, "new");
    let open = second.ask("oncebox.begin_effect({held}, '900 ms', 'charge')").await;
    assert_eq!((&open["answer"], &open["is_own"]), (&json!("open"), &json!(false)));
    assert_eq!(second.ask("oncebox.begin_effect_again({held}, '900 ms', 'charge')").await, json!(true));
    let done = r#"oncebox.end_effect({held}, '900 ms', 'charge', 'done', '{"id": 7}')"#;
    for _ in 0..2 {
        assert_eq!(second.ask(done).await, json!(true), "also when its answer was lost");
    }
    assert_eq!(second.ask("oncebox.release_leased({held}, '0 s', 'busy')").await, json!(true));
    assert_eq!(first.claim().await, "new");
    let known = first.ask("oncebox.begin_effect({held}, '900 ms', 'charge')").await;
    assert_eq!((&known["answer"], &known["result"]), (&json!("done"), &json!({ "id": 7 })));
    first.ask("oncebox.finish_leased({held}, '{\"paid\": true}')").await;
    for payload in [PAYLOAD, "other"] {
        let ended = second.claim_of(payload, false).await;
        let expected = if payload == PAYLOAD {
            json!(["replayed", { "paid": true }])
        } else {
            json!(["mismatch", null])
        };
        assert_eq!(json!([ended["answer"], ended["outcome"]]), expected);
    }
    for table in ["oncebox.inbox_claim", "oncebox.inbox_effect"] {
        assert_eq!(count(&env, table).await, 0, "{table}");
    }
}

/// Suspended for longer than its lease, an owner goes on.
#[tokio::test]
async fn a_late_owner_writes_nothing() {
    let (env, one, other) = fresh().await;
    let (mut first, mut second) = (Owner::new(&one, FIRST), Owner::new(&other, SECOND));
    assert_eq!((first.claim().await.as_str(), first.begin().await.as_str()), ("new", "begun"));
    expire(&env).await;
    assert_eq!(second.claim().await, "new");
    let stands = "SELECT jsonb_build_array((SELECT jsonb_agg(c) FROM oncebox.inbox_claim AS c),
                  (SELECT jsonb_agg(e) FROM oncebox.inbox_effect AS e), (SELECT count(*) FROM oncebox.inbox))::text";
    let before: String = one.query_one(stands, &[]).await.unwrap().get(0);
    assert_eq!(first.begin().await, "lost");
    let bury = format!("oncebox.bury_leased({{held}}, '{PAYLOAD}', 'broke', 's.t')");
    for call in [
        "oncebox.renew_lease({held}, '1 h')",
        "oncebox.begin_effect_again({held}, '1 h', 'charge')",
        "oncebox.end_effect({held}, '1 h', 'charge', 'done')",
        "oncebox.end_effect({held}, '1 h', 'charge', 'absent')",
        "oncebox.release_leased({held}, '0 s', 'broke')",
        &bury,
    ] {
        assert_eq!(first.ask(call).await, json!(false), "{call}");
    }
    one.batch_execute("BEGIN; INSERT INTO effect (key, n) VALUES ('k', 0)").await.unwrap();
    let (message, code) = first.refused("oncebox.finish_leased({held})").await;
    assert!(code.code() == "OB014" && message.contains("the lease of key \"k\""), "{message}");
    one.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(one.query_one(stands, &[]).await.unwrap().get::<_, String>(0), before);
    assert_eq!((effects(&env).await, dead_letters(&env).await.len()), (0, 0));
}

#[tokio::test]
async fn an_owner_that_has_released_its_claim_cannot_end_it() {
    let (env, one, _) = fresh().await;
    let mut first = Owner::new(&one, FIRST);
    assert_eq!(first.claim().await, "new");
    assert_eq!(first.ask("oncebox.release_leased({held}, '1 h', 'broke')").await, json!(true));
    let (message, code) = first.refused("oncebox.finish_leased({held})").await;
    assert_eq!(code.code(), "OB014", "{message}");
    let bury = format!("oncebox.bury_leased({{held}}, '{PAYLOAD}', 'broke', 's.t')");
    assert_eq!(first.ask(&bury).await, json!(false));
    assert!(dead_letters(&env).await.is_empty());
}

#[tokio::test]
async fn an_operator_gives_a_message_up_that_no_owner_works_on() {
    let (env, one, _) = fresh().await;
    let mut first = Owner::new(&one, FIRST);
    assert_eq!((first.claim().await.as_str(), first.begin().await.as_str()), ("new", "begun"));
    assert_eq!(first.ask("oncebox.renew_lease({held}, '1 h')").await, json!(true));
    let bury = format!(
        "oncebox.bury_failing('{SCOPE}', '', 'k', '{PAYLOAD}', 's.t', '{{}}', 'S', 1, now(), 2, 'broke', 'mina', NULL)"
    );
    assert_eq!(first.ask(&bury).await, "in_flight");
    assert_eq!((count(&env, "oncebox.inbox").await, dead_letters(&env).await.len()), (0, 0));
    assert_eq!(first.ask("oncebox.release_leased({held}, '1 h', 'broke')").await, json!(true));
    assert_eq!(first.ask(&bury).await, "dead");
    assert_eq!((count(&env, "oncebox.inbox_claim").await, dead_letters(&env).await.len()), (0, 1));
    let kept = "SELECT epoch FROM oncebox.inbox_effect";
    assert_eq!(one.query_one(kept, &[]).await.unwrap().get::<_, i64>(0), 0, "no owner has begun it");
}

/// A driver without autocommit, whose user has forgotten a COMMIT.
#[tokio::test]
async fn what_is_not_committed_is_refused_by_the_next_call() {
    let (env, one, other) = fresh().await;
    let mut first = Owner::new(&one, FIRST);
    one.batch_execute("BEGIN").await.unwrap();
    assert_eq!(first.claim().await, "new");
    for call in ["oncebox.begin_effect({held}, '1 s', 'charge')", "oncebox.finish_leased({held})"] {
        one.batch_execute("SAVEPOINT s").await.unwrap();
        let (message, code) = first.refused(call).await;
        assert!(
            code.code() == "OB010" && message.contains("the claim, or its renewal, is not committed"),
            "{message}"
        );
        one.batch_execute("ROLLBACK TO s").await.unwrap();
    }
    one.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(first.claim().await, "new");
    one.batch_execute("BEGIN").await.unwrap();
    assert_eq!(first.begin().await, "begun");
    let (message, code) = first.refused("oncebox.end_effect({held}, '1 s', 'charge', 'done')").await;
    assert!(code.code() == "OB010" && message.contains("the beginning of the effect"), "{message}");
    one.batch_execute("ROLLBACK").await.unwrap();
    // An effect that is left open does not end well.
    assert_eq!(first.begin().await, "begun");
    let (message, code) = first.refused("oncebox.finish_leased({held})").await;
    assert!(code.code() == "OB010" && message.contains("has not ended"), "{message}");
    // The other mode.
    other.batch_execute("SELECT oncebox.register_scope('plain')").await.unwrap();
    for call in [
        format!("oncebox.claim_leased('plain', 'k', '', '{}', '1 s')", first.owner),
        "oncebox.register_scope('plain', mode => 'lease')".to_owned(),
        format!("oncebox.register_scope('{SCOPE}')"),
    ] {
        assert_eq!(first.refused(&call).await.1.code(), "OB010", "{call}");
    }
    for call in [
        "oncebox.claim_leased({id}, '', NULL, '1 s')",
        "oncebox.renew_lease({held}, '0 s')",
        "oncebox.begin_effect({held}, '1 s', 'two words')",
        "oncebox.end_effect({held}, '1 s', 'charge', 'perhaps')",
        "oncebox.release_leased({held}, '-1 s', 'x')",
        "oncebox.finish_leased({held}, NULL, 'dead')",
    ] {
        let call = call.replace("{id}, '', NULL", &format!("'{SCOPE}', 'k', '', NULL"));
        assert_eq!(first.refused(&call).await.1.code(), "OB011", "{call}");
    }
    assert_eq!(count(&env, "oncebox.inbox").await, 0);
}

#[tokio::test]
async fn of_many_takers_one_has_the_key_and_two_that_vanished_make_it_suspect() {
    let (env, one, _) = fresh().await;
    let mut takers = JoinSet::new();
    for number in 0..16 {
        let client = env.pg().await;
        takers.spawn(async move { Owner::new(&client, number).claim().await });
    }
    let answers = takers.join_all().await;
    assert_eq!(answers.iter().filter(|answer| *answer == "new").count(), 1, "{answers:?}");
    assert!(answers.iter().all(|answer| answer == "new" || answer == "in_flight"), "{answers:?}");
    let mut owner = Owner::new(&one, 99);
    for expected in ["new", "alone"] {
        expire(&env).await;
        assert_eq!(owner.claim().await, expected);
    }
    let alone = owner.claim_of(PAYLOAD, true).await;
    assert_eq!((&alone["answer"], &alone["attempts"]), (&json!("new"), &json!(3)));
    assert_eq!(
        owner.ask("oncebox.release_leased({held}, '0 s', 'later', is_attempt => false)").await,
        json!(true)
    );
    assert_eq!(owner.claim_of(PAYLOAD, false).await["attempts"], 3, "a snooze is no attempt");
}

/// An effect of an earlier run may have happened, even if the last run ended in another way.
#[tokio::test]
async fn a_dead_letter_names_open_effects_of_earlier_runs() {
    let (env, one, _) = fresh().await;
    let mut first = Owner::new(&one, FIRST);
    assert_eq!((first.claim().await.as_str(), first.begin().await.as_str()), ("new", "begun"));
    first.ask("oncebox.release_leased({held}, '0 s', 'no answer', is_unknown => true)").await;
    assert_eq!(first.claim().await, "new");
    let bury = format!("oncebox.bury_leased({{held}}, '{PAYLOAD}', 'the customer service is away', 's.t')");
    assert_eq!(first.ask(&bury).await, json!(true));
    let named = "the customer service is away; the outcome of effect \"charge\" is unknown";
    assert_eq!(dead_letters(&env).await, [named]);

    let (env, _, provider) = setup().await;
    let leased = builder(&env, LEASE);
    let leased = leased.build().unwrap();
    provider.mood(Mood::LosesAnswers);
    let message = message("k", 7);
    assert!(matches!(leased.run(&Pays::charge(&provider), &message).await.unwrap(), Verdict::Retry { .. }));
    expire(&env).await;
    let gives_up = Pays::new(|_, _| Box::pin(async { Ok(Outcome::Dead("no such order".to_owned())) }));
    leased.run(&gives_up, &message).await.unwrap();
    assert_eq!(dead_letters(&env).await, ["no such order; the outcome of effect \"charge\" is unknown"]);
}

#[tokio::test]
async fn an_effect_ends_once() {
    let (env, one, _) = fresh().await;
    let mut first = Owner::new(&one, FIRST);
    assert_eq!(first.claim().await, "new");
    let end = |more: &str| format!("oncebox.end_effect({{held}}, '900 ms', 'charge', {more})");
    assert_eq!(first.refused(&end("'done'")).await.1.code(), "OB010", "it has not begun");
    assert_eq!(first.ask(&end("'absent'")).await, json!(true), "forgotten before its answer was lost");
    assert_eq!(first.begin().await, "begun");
    for _ in 0..2 {
        assert_eq!(first.ask(&end("'done', '17'")).await, json!(true));
    }
    for other in ["'done', '18'", "'rejected', reason => 'no'", "'absent'"] {
        assert_eq!(first.refused(&end(other)).await.1.code(), "OB010", "{other}");
    }
    let known = first.ask("oncebox.begin_effect({held}, '900 ms', 'charge')").await;
    assert_eq!((&known["answer"], &known["result"]), (&json!("done"), &json!(17)));
    assert_eq!(count(&env, "oncebox.inbox_effect").await, 1);
}

/// The message with another payload is recorded; one whose claim is open, or that is free, is not
/// given up by a caller without a claim.
#[tokio::test]
async fn a_key_of_another_payload_is_buried_and_no_other() {
    let (env, one, _) = fresh().await;
    let mut first = Owner::new(&one, FIRST);
    let bury = |payload: &str| format!("oncebox.bury('{SCOPE}', 'k', '{payload}', 'used before', 's.t')");
    let free = first.refused(&bury(PAYLOAD)).await;
    assert!(free.1.code() == "OB010" && free.0.contains("has not ended"), "{}", free.0);
    assert_eq!(first.claim().await, "new");
    assert_eq!(first.refused(&bury(PAYLOAD)).await.1.code(), "OB010", "it is at work");
    assert_eq!(first.ask(&bury("other")).await, "mismatch");
    first.ask("oncebox.finish_leased({held})").await;
    assert_eq!(first.ask(&bury(PAYLOAD)).await, "replayed", "nothing is recorded");
    assert_eq!(first.ask(&bury("another")).await, "mismatch");
    assert_eq!(dead_letters(&env).await, ["used before", "used before"]);
    let keys = "SELECT count(*) FROM oncebox.dead_letter WHERE key = 'k'";
    assert_eq!(one.query_one(keys, &[]).await.unwrap().get::<_, i64>(0), 2);
}

/// If one of them has begun a key, the other continues it; if one has ended it, the other replays
/// it.
#[tokio::test]
async fn rust_and_sql_share_a_scope() {
    let (env, rust, provider) = setup().await;
    let (one, handler) = (env.pg().await, Pays::charge(&provider));
    let mut sql = Owner::new(&one, FIRST);
    assert_eq!((sql.claim().await.as_str(), sql.begin().await.as_str()), ("new", "begun"));
    assert_eq!(rust.run(&handler, &message("k", 7)).await.unwrap(), Verdict::InFlight);
    // The call of the SQL side was made, and its answer lost.
    provider.charge("k:charge").await.unwrap();
    age_effects(&env).await;
    expire(&env).await;
    assert_eq!(rust.run(&handler, &message("k", 7)).await.unwrap(), Verdict::Handled(receipt()));
    assert_eq!((provider.calls("k:charge"), provider.lookups()), (1, 1), "asked, not repeated");
    let ended = sql.claim_of(PAYLOAD, false).await;
    assert_eq!(json!([ended["answer"], ended["outcome"]]), json!(["replayed", "receipt of k:charge"]));
    one.batch_execute("DELETE FROM oncebox.inbox; DELETE FROM effect").await.unwrap();

    // And the other way round.
    provider.mood(Mood::LosesAnswers);
    assert!(matches!(rust.run(&handler, &message("k", 7)).await.unwrap(), Verdict::Retry { .. }));
    expire(&env).await;
    assert_eq!(sql.claim().await, "new");
    assert_eq!(sql.begin().await, "open");
    sql.ask(r#"oncebox.end_effect({held}, '900 ms', 'charge', 'done', '"from sql"')"#).await;
    sql.ask(r#"oncebox.finish_leased({held}, '"no"', 'rejected')"#).await;
    let verdict = leased(&env).run(&handler, &message("k", 7)).await.unwrap();
    assert_eq!(replayed(&verdict), oncebox_inbox::Answer::Rejected("no".to_owned()));
    one.batch_execute("DELETE FROM oncebox.inbox").await.unwrap();

    // Given up by SQL, and then by Rust.
    assert_eq!(sql.claim().await, "new");
    let bury = format!("oncebox.bury_leased({{held}}, '{PAYLOAD}', 'no use', 's.t')");
    assert_eq!(sql.ask(&bury).await, json!(true));
    let verdict = rust.run(&handler, &message("k", 7)).await.unwrap();
    assert_eq!(verdict, Verdict::Dead { reason: "no use".to_owned() });
    one.batch_execute("DELETE FROM oncebox.inbox").await.unwrap();
    let gives_up = Pays::new(|_, _| Box::pin(async { Ok(Outcome::Dead("broken".to_owned())) }));
    rust.run(&gives_up, &message("k", 7)).await.unwrap();
    let ended = sql.claim_of(PAYLOAD, false).await;
    assert_eq!(json!([ended["answer"], ended["reason"]]), json!(["dead", "broken"]));
    assert_eq!(dead_letters(&env).await.len(), 2);
}

#[tokio::test]
async fn a_message_is_snoozed_for_no_longer_than_its_limit() {
    let (env, one, _) = fresh().await;
    let snooze = format!("SELECT oncebox.snooze('{SCOPE}', 'k', '1 s', 'not yet', longest => '1 h')");
    for _ in 0..2 {
        assert!(one.query_one(&snooze, &[]).await.unwrap().get::<_, bool>(0));
    }
    let row = one.query_one("SELECT snoozes, reason FROM oncebox.inbox_snooze", &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, &str>(1)), (2, "not yet"));
    one.batch_execute("UPDATE oncebox.inbox_snooze SET snoozed_at = snoozed_at - interval '2 h'")
        .await
        .unwrap();
    assert!(!one.query_one(&snooze, &[]).await.unwrap().get::<_, bool>(0), "for two hours already");
    assert_eq!(count(&env, "oncebox.inbox_attempt").await, 0);
}
