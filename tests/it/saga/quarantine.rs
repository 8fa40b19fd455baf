//! Sagas in quarantine: the causes, that others go on, and how they come out again.

use oncebox_inbox::Verdict;
use oncebox_saga::{Definition, Orchestrator, Step};

use crate::saga::{
    shop::{Shop, data, is_handled, reply},
    stuck::ask,
};

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
    // Messages that come meanwhile wait, and none is lost when it is mended. Only the participant's
    // death of a command counts.
    assert!(is_handled(&shop.dies_at("analytics:audit", "o-2:order:reserve", 1).await));
    assert!(is_handled(&shop.die("o-1:order:pay", 1).await));
    shop.tell("o-2:order:reserve", "done 8").await;
    assert_eq!(shop.look().await, 0);
    let mend = "UPDATE oncebox.saga SET data = '{\"cents\": 500}' WHERE state = 'quarantined'";
    shop.client.batch_execute(mend).await.unwrap();
    for id in [1, 2] {
        assert_eq!(ask(&shop, &format!("retry_saga({id})")).await.unwrap(), Vec::<String>::new());
    }
    assert_eq!(shop.look().await, 2);
    shop.is("o-2", "running").await;
    assert_eq!(shop.sent("o-2").await, ["reserve", "pay"]);
    shop.is("o-1", "compensating").await;
    assert_eq!(shop.sent("o-1").await, ["reserve", "pay", "pay:undo"]);
    let counts = shop.orchestrator.counts();
    assert_eq!((counts.quarantined, counts.foreign), (2, 1));
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

/// If PostgreSQL refuses the row of one saga, those beside it are written.
#[tokio::test]
async fn a_saga_that_postgresql_refuses_is_put_aside_alone() {
    let check = "ALTER TABLE oncebox.saga ADD CONSTRAINT of_a_rule
                 CHECK (business_id <> 'o-1' OR state IN ('running', 'quarantined'))";
    the_first_is_put_aside(check, "of_a_rule").await;
}

/// Another program has enqueued a message under the key of a command.
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
        shop.client.batch_execute("UPDATE oncebox.inbox_attempt SET due_at = NULL").await.unwrap();
    }
    assert!(shop.state("o-1").await.1.unwrap().contains("is already enqueued with subject"));
    // The row that took the key is gone, and the answer was kept.
    shop.client.batch_execute("DELETE FROM oncebox.message_0 WHERE key = 'o-1:order:pay'").await.unwrap();
    ask(&shop, "retry_saga(1)").await.unwrap();
    assert_eq!(shop.look().await, 1);
    assert_eq!(shop.sent("o-1").await, ["reserve", "pay"]);
}

/// The process that cannot write a saga puts it aside in the transaction in which it has its row:
/// there is no moment at which an answer could change it in between.
#[tokio::test]
async fn a_saga_is_put_aside_before_its_row_is_let_go() {
    let mut shop = Shop::new(&[]).await;
    shop.start("o-1", &data(500)).await.unwrap();
    shop.client
        .batch_execute("SELECT oncebox.enqueue('o-1:order:reserve:undo', 'elsewhere', 'other')")
        .await
        .unwrap();
    let late = "UPDATE oncebox.saga_step SET deadline_at = clock_timestamp();
                UPDATE oncebox.saga SET due_at = clock_timestamp()";
    shop.client.batch_execute(late).await.unwrap();
    // The first that waits for the pool's one connection gets it next: this test is in between each
    // time.
    let pool = shop.env.pool(1);
    let timers = shop.orchestrator.timers(pool.clone());
    let first = pool.get().await.unwrap();
    let between = async {
        for _ in 0..2 {
            let held = pool.get().await.unwrap();
            let (state, _) = shop.state("o-1").await;
            if state == "quarantined" {
                return;
            }
            assert_eq!(state, "running");
            tokio::task::yield_now().await;
            drop(held);
        }
        panic!("its row was let go, and it is not put aside");
    };
    let (looked_at, (), ()) = tokio::join!(timers.run_once(), between, async { drop(first) });
    assert_eq!(looked_at.unwrap(), 1);
    assert!(is_handled(&shop.tell("o-1:order:reserve", "done 7").await));
    shop.is("o-1", "quarantined").await;
}

/// The answer that puts a saga aside can be skipped, of a step and of a compensation.
#[tokio::test]
async fn a_step_of_a_saga_in_quarantine_can_be_skipped() {
    let mut shop = Shop::new(&[]).await;
    shop.start("o-1", &data(500)).await.unwrap();
    assert!(is_handled(&shop.tell("o-1:order:reserve", r#"rejected "a\u0000b""#).await));
    shop.is("o-1", "quarantined").await;
    let told = ask(&shop, "skip_saga_step(1, 'pay')").await.unwrap_err();
    assert_eq!(told, "step \"pay\" of saga \"o-1:order\" is not under way, nor does it wait for an operator");
    assert_eq!(ask(&shop, "skip_saga_step(1, 'reserve')").await.unwrap(), ["reserve"]);
    assert_eq!(shop.look().await, 1);
    shop.is("o-1", "running").await;
    assert_eq!(shop.sent("o-1").await, ["reserve", "pay"]);
    // On the way back, with data that is mended later: requests wait as well.
    shop.tell("o-1:order:pay", "rejected").await;
    shop.is("o-1", "compensating").await;
    shop.client.batch_execute("UPDATE oncebox.saga SET data = '{\"cents\": \"many\"}'").await.unwrap();
    assert!(is_handled(&shop.tell("o-1:order:reserve:undo", "done").await));
    shop.is("o-1", "quarantined").await;
    assert_eq!(ask(&shop, "skip_saga_step(1, 'reserve')").await.unwrap(), ["reserve"]);
    assert_eq!(shop.look().await, 1);
    shop.is("o-1", "quarantined").await;
    shop.client.batch_execute("UPDATE oncebox.saga SET data = '{\"cents\": 500}'").await.unwrap();
    ask(&shop, "retry_saga(1)").await.unwrap();
    assert_eq!(shop.look().await, 1);
    shop.is("o-1", "compensated").await;
}

/// A participant's answer need not be JSON, unless the definition reads it.
#[tokio::test]
async fn answers_of_any_form_count_and_put_their_saga_aside_where_they_are_read() {
    for body in ["OK", "\u{feff}7", "\u{8}\u{1}", "{\"a\": "] {
        let mut shop = Shop::new(&[]).await;
        for (id, answer, state, sent) in [
            ("o-1", "done", "running", vec!["reserve", "pay", "ship"]),
            ("o-2", "rejected", "compensating", vec!["reserve", "pay", "reserve:undo"]),
        ] {
            shop.start(id, &data(500)).await.unwrap();
            shop.tell(&format!("{id}:order:reserve"), "done 7").await;
            let told = shop.tell(&format!("{id}:order:pay"), &format!("{answer} {body}")).await;
            assert!(is_handled(&told), "{body}: {told:?}");
            shop.is(id, state).await;
            assert_eq!(shop.sent(id).await, sent, "{body}");
        }
        shop.start("o-3", &data(500)).await.unwrap();
        assert!(is_handled(&shop.tell("o-3:order:reserve", &format!("done {body}")).await));
        shop.is("o-3", "quarantined").await;
        // A letter may bring the command's payload, of any form.
        shop.start("o-4", &data(500)).await.unwrap();
        assert!(is_handled(&shop.die("o-4:order:reserve", 1).await));
        shop.is("o-4", "compensating").await;
    }
}

/// A number that JSON has not would be read as none: it is an error where it comes up.
#[tokio::test]
async fn a_number_that_json_has_not_starts_no_saga_and_puts_one_aside() {
    type Data = Option<f64>;
    let mut shop = Shop::new(&[]).await;
    let step = Step::new("weigh", "weigh.do", |_: &Data| ()).scope("x").no_compensation();
    let step =
        step.on_done(|weight: &mut Data, divisor: f64| *weight = weight.map(|weight| weight / divisor));
    let weigh = Definition::<Data>::builder("weigh", 1).step(step).build().unwrap();
    let orchestrator = Orchestrator::builder("sagas.replies".parse().unwrap()).definition(&weigh);
    shop.orchestrator = orchestrator.build().unwrap();
    for (id, weight) in [("o-1", f64::INFINITY), ("o-2", 1.5)] {
        let transaction = shop.client.transaction().await.unwrap();
        let started = shop.orchestrator.start(&transaction, &weigh, id, &Some(weight)).await;
        match started {
            Ok(_) => transaction.commit().await.unwrap(),
            Err(problem) => assert!(problem.to_string().contains("infinite or NaN"), "{problem}"),
        }
    }
    assert_eq!(shop.number("SELECT count(*) FROM oncebox.saga").await, 1);
    assert!(is_handled(&shop.tell("o-2:weigh:weigh", "done 0").await));
    let (state, reason) = shop.state("o-2").await;
    assert_eq!(state, "quarantined");
    assert!(reason.as_deref().is_some_and(|reason| reason.contains("infinite or NaN")), "{reason:?}");
}
