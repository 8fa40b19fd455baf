//! Sagas that wait for an operator: stuck, given up; attempts, and deaths of commands.

use std::time::Duration;

use oncebox_saga::{Definition, Error, Step};
use tokio_postgres::error::SqlState;

use crate::saga::shop::{OrderData, PARTICIPANT, Shop, data, is_handled, orchestrator};

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

pub(crate) async fn ask(shop: &Shop, call: &str) -> Result<Vec<String>, String> {
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
    // The first attempt had no effect, says the participant; the second's counts.
    assert!(is_handled(&shop.tell("o-1:order:tell:#2", "done").await));
    shop.is("o-1", "completed").await;
}

#[tokio::test]
async fn what_is_asked_in_vain_says_why() {
    let mut shop = stuck_after_the_pivot().await;
    let told = ask(&shop, "retry_saga(1, 'ship')").await.unwrap_err();
    assert_eq!(
        told,
        "step \"ship\" of saga \"o-1:order\" does not wait for an operator, or one has acted on it already"
    );
    assert_eq!(ask(&shop, "retry_saga(2)").await.unwrap_err(), "there is no saga 2");
    assert_eq!(ask(&shop, "skip_saga_step(1, 'tell')").await.unwrap(), ["tell"]);
    // Asked twice before an orchestrator has looked: the first counts.
    let again = ask(&shop, "retry_saga(1, 'tell')").await.unwrap_err();
    assert!(again.contains("or one has acted on it already"), "{again}");
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
    // Its business id stands for it, also when sweeping has forgotten it.
    assert!(!shop.start("o-1", &data(500)).await.unwrap().is_new);
    shop.client.query("SELECT oncebox.sweep_sagas('0 s', 10)", &[]).await.unwrap();
    assert_eq!(shop.number("SELECT count(*) FROM oncebox.saga_step").await, 0);
    let again = shop.start("o-1", &data(500)).await;
    assert!(matches!(again, Err(Error::AlreadySent(_))), "{again:?}");
    assert_eq!(shop.number("SELECT count(*) FROM oncebox.saga").await, 0);
}

/// Another attempt waits for its pause when an operator gives the saga up: it is never sent.
#[tokio::test]
async fn what_is_abandoned_sends_no_attempt_that_was_delayed() {
    let mut shop = Shop::new(&[]).await;
    let command = |order: &OrderData| order.cents;
    let pay = Step::new("pay", "pay.do", command).scope(PARTICIPANT).compensation("pay.undo", command);
    let pay = pay.attempts(3, Duration::from_secs(3_600));
    shop.order = Definition::builder("order", 2).step(pay).build().unwrap();
    shop.orchestrator = orchestrator(&[&shop.order]);
    for id in ["o-1", "o-2", "o-3"] {
        shop.start(id, &data(500)).await.unwrap();
        shop.tell(&format!("{id}:order:pay"), "rejected").await;
    }
    // The attempt at a compensation waits as well.
    assert!(is_handled(&shop.die("o-2:order:pay:#2", 1).await));
    shop.late("o-2", "pay").await;
    shop.tell("o-2:order:pay:undo", "rejected").await;
    let own = "SELECT oncebox.enqueue_at('o-1:order:pay:note', 'note', '', now() + interval '1 hour')";
    shop.client.batch_execute(own).await.unwrap();
    let delayed = "SELECT string_agg(key, ' ' ORDER BY key) FROM oncebox.delayed";
    let delayed = async || shop.client.query_one(delayed, &[]).await.unwrap().get::<_, String>(0);
    assert_eq!(
        delayed().await,
        "o-1:order:pay:#2 o-1:order:pay:note o-2:order:pay:#2 o-2:order:pay:#2:undo o-2:order:pay:#3 o-3:order:pay:#2"
    );
    for id in [1, 2] {
        shop.client.query(&format!("SELECT oncebox.abandon_saga({id}, 'INC-7')"), &[]).await.unwrap();
    }
    assert_eq!(delayed().await, "o-1:order:pay:note o-3:order:pay:#2", "not what is somebody else's");
    assert_eq!(shop.number("SELECT count(*) FROM oncebox.message WHERE lane = -1").await, 2);
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

/// The participant of one step never answers again: the steps before are undone, and its own
/// possible effect is left to an operator.
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
