//! What waits for an operator: stuck, in quarantine, given up; attempts, and deaths of commands.

use oncebox_inbox::Verdict;
use tokio_postgres::error::SqlState;

use crate::saga::shop::{Shop, data, is_handled, reply};

async fn stuck_after_the_pivot() -> Shop {
    let mut shop = Shop::new(&["tell"]).await;
    shop.start("o-1", &data(500)).await.unwrap();
    for step in ["reserve", "pay", "ship"] {
        shop.tell(&format!("o-1:order:{step}"), "done 7").await;
    }
    shop.tell("o-1:order:tell", "rejected").await;
    shop.is("o-1", "stuck").await;
    shop
}

async fn ask(shop: &Shop, call: &str) -> Result<Vec<String>, String> {
    let sql = format!("SELECT oncebox.{call}");
    match shop.client.query_one(&sql, &[]).await {
        Ok(row) => Ok(row.get(0)),
        Err(error) => {
            assert_eq!(error.code(), Some(&SqlState::from_code("OB009")), "{error}");
            Err(error.as_db_error().unwrap().message().to_owned())
        }
    }
}

#[tokio::test]
async fn another_attempt_has_a_key_and_a_number_of_its_own_and_the_same_bytes() {
    let mut shop = stuck_after_the_pivot().await;
    assert_eq!(ask(&shop, "retry_saga(1)").await.unwrap(), ["tell"]);
    assert_eq!(shop.look().await, 1);
    assert_eq!(shop.sent("o-1").await.last().unwrap(), "tell:#2");
    let sql = "SELECT string_agg(convert_from(payload, 'UTF8') || coalesce(headers ->> 'Saga-Attempt', ''), ' ' ORDER BY id)
               FROM oncebox.message WHERE key LIKE 'o-1:order:tell%'";
    let sent: String = shop.client.query_one(sql, &[]).await.unwrap().get(0);
    let (first, second) = sent.split_once(' ').unwrap();
    assert_eq!(format!("{first}2"), second);
    // The first attempt had no effect, says the participant; that of the second counts.
    assert!(is_handled(&shop.tell("o-1:order:tell:#2", "done").await));
    shop.is("o-1", "completed").await;
}

#[tokio::test]
async fn what_is_asked_in_vain_says_why() {
    let mut shop = stuck_after_the_pivot().await;
    let told = ask(&shop, "retry_saga(1, 'ship')").await.unwrap_err();
    assert_eq!(told, "step \"ship\" of saga \"o-1:order\" does not wait for an operator");
    assert_eq!(ask(&shop, "retry_saga(2)").await.unwrap_err(), "there is no saga 2");
    assert_eq!(ask(&shop, "skip_saga_step(1, 'tell')").await.unwrap(), ["tell"]);
    // Asked twice before anybody looked: the second finds nothing to do.
    assert_eq!(ask(&shop, "retry_saga(1, 'tell')").await.unwrap(), ["tell"]);
    assert_eq!(shop.look().await, 1);
    shop.is("o-1", "completed").await;
    assert_eq!(shop.sent("o-1").await, ["reserve", "pay", "ship", "tell"]);
    let told = ask(&shop, "retry_saga(1)").await.unwrap_err();
    assert_eq!(told, "saga \"o-1:order\" is completed, not stuck: no step of it waits for an operator");
    shop.start("o-2", &data(1)).await.unwrap();
    assert!(ask(&shop, "skip_saga_step(2, 'reserve')").await.unwrap_err().contains("is running, not stuck"));
}

#[tokio::test]
async fn what_is_abandoned_stays_as_it_is() {
    let mut shop = stuck_after_the_pivot().await;
    let abandon = "SELECT oncebox.abandon_saga(1, 'INC-7')";
    assert!(shop.client.query_one(abandon, &[]).await.unwrap().get::<_, bool>(0));
    assert!(!shop.client.query_one(abandon, &[]).await.unwrap().get::<_, bool>(0));
    let before = shop.everything().await;
    assert!(is_handled(&shop.tell("o-1:order:tell", "done").await));
    assert_eq!(shop.look().await, 0);
    assert_eq!(shop.everything().await, before);
    assert_eq!(shop.state("o-1").await, ("abandoned".to_owned(), Some("INC-7".to_owned())));
    // Sweeping forgets it, and its business id is free.
    shop.client.query("SELECT oncebox.sweep_sagas('0 s', 10)", &[]).await.unwrap();
    assert_eq!(shop.number("SELECT count(*) FROM oncebox.saga_step").await, 0);
}

#[tokio::test]
async fn a_compensation_that_dies_waits_for_an_operator_and_others_do_not() {
    let mut shop = Shop::new(&[]).await;
    for id in ["o-1", "o-2"] {
        shop.start(id, &data(500)).await.unwrap();
        shop.tell(&format!("{id}:order:reserve"), "done 7").await;
        shop.tell(&format!("{id}:order:pay"), "rejected").await;
    }
    assert!(is_handled(&shop.die("o-1:order:reserve:undo", 1).await));
    shop.is("o-1", "stuck").await;
    shop.tell("o-2:order:reserve:undo", "done").await;
    shop.is("o-2", "compensated").await;
    assert_eq!(ask(&shop, "retry_saga(1)").await.unwrap(), ["reserve"]);
    shop.look().await;
    assert_eq!(shop.sent("o-1").await.last().unwrap(), "reserve:#2:undo");
    shop.tell("o-1:order:reserve:#2:undo", "done").await;
    shop.is("o-1", "compensated").await;
}

/// The participant of one step never answers again: what came before is undone, and what it may
/// have done is left to an operator.
#[tokio::test]
async fn a_participant_that_dies_for_good_at_each_step_and_each_compensation() {
    let mut shop = Shop::new(&["tell"]).await;
    let steps = ["reserve", "pay", "ship", "tell"];
    for (at, dies) in steps.iter().enumerate() {
        let id = format!("at-{dies}");
        shop.start(&id, &data(500)).await.unwrap();
        for step in &steps[..at] {
            shop.tell(&format!("{id}:order:{step}"), "done 7").await;
        }
        assert!(is_handled(&shop.die(&format!("{id}:order:{dies}"), 1).await));
        // From the pivot on there is no way back.
        let undone: Vec<String> = match at {
            0 | 1 => steps[..=at].iter().rev().map(|step| format!("{step}:undo")).collect(),
            _ => Vec::new(),
        };
        for undo in &undone {
            shop.is(&id, "compensating").await;
            // It dies too, and an operator sees to it.
            assert!(is_handled(&shop.die(&format!("{id}:order:{undo}"), 1).await));
            shop.is(&id, "stuck").await;
            let key = format!("{id}:order:{undo}");
            shop.tell(&key, "done").await;
        }
        shop.is(&id, if undone.is_empty() { "stuck" } else { "compensated" }).await;
        assert_eq!(shop.sent(&id).await[at + 1..], undone);
    }
}

#[tokio::test]
async fn each_death_of_a_command_is_told_apart() {
    let mut shop = Shop::new(&[]).await;
    shop.start("o-1", &data(500)).await.unwrap();
    shop.tell("o-1:order:reserve", "done 7").await;
    assert!(is_handled(&shop.die("o-1:order:pay", 1).await));
    assert_eq!(shop.sent("o-1").await, ["reserve", "pay", "pay:undo"], "nobody knows whether it was paid");
    let reason = shop.state("o-1").await.1.unwrap();
    assert_eq!(reason, "step \"pay\": given up by the participant: it panics");
    // Delivered again, and dead again after its participant's operator retried it.
    assert!(!is_handled(&shop.die("o-1:order:pay", 1).await), "the inbox knows it");
    assert!(is_handled(&shop.die("o-1:order:pay", 2).await));
    assert_eq!(shop.orchestrator.counts().late, 1);
    assert_eq!(shop.sent("o-1").await, ["reserve", "pay", "pay:undo"]);
}

#[tokio::test]
async fn a_saga_that_cannot_be_read_is_put_aside_and_blocks_no_other() {
    let mut shop = Shop::new(&[]).await;
    for id in ["o-1", "o-2", "o-3"] {
        shop.start(id, &data(500)).await.unwrap();
    }
    let spoil = "UPDATE oncebox.saga SET data = '{\"cents\": \"many\"}' WHERE business_id <> 'o-3'";
    shop.client.batch_execute(spoil).await.unwrap();
    // Met by an answer, and by a deadline beside another's.
    assert!(is_handled(&shop.tell("o-1:order:reserve", "done 7").await));
    shop.due("o-2").await;
    shop.late("o-3", "reserve").await;
    for (id, state) in [("o-1", "quarantined"), ("o-2", "quarantined"), ("o-3", "compensating")] {
        shop.is(id, state).await;
    }
    assert_eq!(shop.state("o-1").await.1.as_deref(), Some("its data is not what the definition reads"));
    // What comes meanwhile waits, and nothing is lost when it is mended.
    shop.tell("o-2:order:reserve", "done 8").await;
    assert_eq!(shop.look().await, 0);
    let mend = "UPDATE oncebox.saga SET data = '{\"cents\": 500}' WHERE state = 'quarantined'";
    shop.client.batch_execute(mend).await.unwrap();
    for id in [1, 2] {
        assert_eq!(ask(&shop, &format!("retry_saga({id})")).await.unwrap(), Vec::<String>::new());
    }
    assert_eq!(shop.look().await, 2);
    for id in ["o-1", "o-2"] {
        shop.is(id, "running").await;
        assert_eq!(shop.sent(id).await, ["reserve", "pay"]);
    }
    assert_eq!(shop.orchestrator.counts().quarantined, 2);
}

#[tokio::test]
async fn an_answer_that_cannot_be_read_puts_its_saga_aside_with_it() {
    let mut shop = Shop::new(&[]).await;
    shop.start("o-1", &data(500)).await.unwrap();
    assert!(is_handled(&shop.tell("o-1:order:reserve", "done \"seven\"").await));
    let (state, reason) = shop.state("o-1").await;
    let reason = reason.unwrap();
    assert_eq!(state, "quarantined");
    assert!(
        reason.starts_with("step \"reserve\", its answer: it is not what the definition reads"),
        "{reason}"
    );
    assert!(!reason.contains("seven"), "no payloads");
    shop.client.batch_execute("UPDATE oncebox.saga_event SET payload = '7'").await.unwrap();
    ask(&shop, "retry_saga(1)").await.unwrap();
    assert_eq!(shop.look().await, 1);
    assert_eq!(shop.sent("o-1").await, ["reserve", "pay"]);
}

/// A participant answers with a NUL in a text, which jsonb does not store: once before its saga is
/// there, so that the timers apply the answer beside another saga's deadline, and once after.
#[tokio::test]
async fn data_that_postgresql_does_not_store_puts_its_saga_aside_alone() {
    let mut shop = Shop::new(&[]).await;
    let refusal = r#"rejected "a\u0000b""#;
    assert!(is_handled(&shop.tell("o-1:order:reserve", refusal).await));
    for id in ["o-1", "o-2", "o-3"] {
        shop.start(id, &data(500)).await.unwrap();
    }
    shop.late("o-3", "reserve").await;
    shop.is("o-3", "compensating").await;
    assert!(is_handled(&shop.tell("o-2:order:reserve", refusal).await));
    for id in ["o-1", "o-2"] {
        let (state, reason) = shop.state(id).await;
        assert_eq!(state, "quarantined", "{reason:?}");
        assert!(reason.unwrap().contains("NUL"));
    }
    // A text that only looks like it is stored.
    shop.start("o-4", &data(500)).await.unwrap();
    shop.tell("o-4:order:reserve", r#"rejected "a\\u0000b""#).await;
    shop.is("o-4", "compensated").await;
}

/// Of two late sagas the first cannot be written because of `obstacle`; the second goes on.
async fn the_first_is_put_aside(obstacle: &str, expected: &str) {
    let mut shop = Shop::new(&[]).await;
    for id in ["o-1", "o-2"] {
        shop.start(id, &data(500)).await.unwrap();
    }
    shop.client.batch_execute(obstacle).await.unwrap();
    let late = "UPDATE oncebox.saga_step SET deadline_at = clock_timestamp();
                UPDATE oncebox.saga SET due_at = clock_timestamp()";
    shop.client.batch_execute(late).await.unwrap();
    assert_eq!(shop.look().await, 2);
    shop.is("o-2", "compensating").await;
    let (state, reason) = shop.state("o-1").await;
    assert_eq!(state, "quarantined", "{reason:?}");
    assert!(reason.as_deref().is_some_and(|reason| reason.contains(expected)), "{reason:?}");
}

/// Whatever PostgreSQL has against the row of one saga, those beside it are written.
#[tokio::test]
async fn a_saga_that_postgresql_refuses_is_put_aside_alone() {
    let check = "ALTER TABLE oncebox.saga ADD CONSTRAINT of_a_rule
                 CHECK (business_id <> 'o-1' OR state IN ('running', 'quarantined'))";
    the_first_is_put_aside(check, "of_a_rule").await;
}

/// Somebody else has enqueued a message under the key of a command.
#[tokio::test]
async fn a_command_whose_key_is_taken_puts_its_saga_aside_alone() {
    let taken = "SELECT oncebox.enqueue('o-1:order:reserve:undo', 'elsewhere', 'other')";
    the_first_is_put_aside(taken, "is already enqueued with subject").await;
}

/// An answer of which the next command cannot be enqueued puts its saga aside, and is kept.
#[tokio::test]
async fn an_answer_after_which_a_command_is_refused_puts_its_saga_aside_with_it() {
    let mut shop = Shop::new(&[]).await;
    shop.start("o-1", &data(500)).await.unwrap();
    let taken = "SELECT oncebox.enqueue('o-1:order:pay', 'elsewhere', 'other')";
    shop.client.batch_execute(taken).await.unwrap();
    for (deliveries, state) in [(1, "running"), (2, "quarantined")] {
        let answer = reply("o-1:order:reserve", "done 7", "reply-1").deliveries(deliveries);
        let verdict = shop.replies().run(&shop.orchestrator.replies(), &answer).await.unwrap();
        assert_eq!(matches!(verdict, Verdict::Retry { .. }), deliveries == 1, "{verdict:?}");
        shop.is("o-1", state).await;
    }
    assert!(shop.state("o-1").await.1.unwrap().contains("is already enqueued with subject"));
    // Whoever took the key is gone, and the answer was kept.
    shop.client.batch_execute("DELETE FROM oncebox.message WHERE key = 'o-1:order:pay'").await.unwrap();
    ask(&shop, "retry_saga(1)").await.unwrap();
    assert_eq!(shop.look().await, 1);
    assert_eq!(shop.sent("o-1").await, ["reserve", "pay"]);
}
