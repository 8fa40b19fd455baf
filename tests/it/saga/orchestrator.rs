//! The orchestrator in a real database: its rows and commands, event by event.

use std::time::Duration;

use oncebox_inbox::Verdict;
use oncebox_saga::Error;
use oncebox_schema::Key;
use oncebox_tests::eventually;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::saga::shop::{OrderData, Shop, data, is_handled, refusal, reply};

const LIMIT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_saga_goes_from_step_to_step_and_learns_on_the_way() {
    let mut shop = Shop::new(&[]).await;
    let started = shop.start("o-1", &data(500)).await.unwrap();
    assert_eq!((started.key.as_str(), started.is_new), ("o-1:order", true));
    let sql = "SELECT subject, headers ->> 'Oncebox-Reply-To', convert_from(payload, 'UTF8')
               FROM oncebox.message WHERE key = $1";
    let command = shop.client.query_one(sql, &[&"o-1:order:reserve"]).await.unwrap();
    let command: Vec<String> = (0..3).map(|column| command.get(column)).collect();
    assert_eq!(command, ["reserve.do", "sagas.replies", r#"{"cents":500,"reservation":null}"#]);

    assert!(is_handled(&shop.tell("o-1:order:reserve", "done 77").await));
    let payload = shop.client.query_one(sql, &[&"o-1:order:pay"]).await.unwrap().get::<_, String>(2);
    assert_eq!(payload, r#"{"cents":500,"reservation":77}"#, "made of what the answer taught");
    // Participants with nothing to say may send nothing.
    assert!(is_handled(&shop.tell("o-1:order:pay", "done").await));
    shop.is("o-1", "running").await;
    assert!(is_handled(&shop.tell("o-1:order:ship", "done null").await));
    shop.is("o-1", "completed").await;
    assert_eq!(shop.sent("o-1").await, ["reserve", "pay", "ship"]);
    let open = "SELECT count(*) FROM oncebox.saga WHERE finished_at IS NULL OR due_at IS NOT NULL";
    assert_eq!(shop.number(open).await, 0);
    assert_eq!(shop.look().await, 0);
    let counts = shop.orchestrator.counts();
    assert_eq!((counts.started, counts.applied, counts.completed), (1, 3, 1));
}

#[tokio::test]
async fn a_no_undoes_what_was_done_in_reverse() {
    let mut shop = Shop::new(&[]).await;
    shop.start("o-1", &data(500)).await.unwrap();
    shop.tell("o-1:order:reserve", "done 77").await;
    shop.tell("o-1:order:pay", "done").await;
    shop.tell("o-1:order:ship", "rejected \"no such address\"").await;
    assert_eq!(shop.sent("o-1").await, ["reserve", "pay", "ship", "pay:undo"]);
    shop.tell("o-1:order:pay:undo", "done").await;
    shop.is("o-1", "compensating").await;
    shop.tell("o-1:order:reserve:undo", "done").await;
    let (state, reason) = shop.state("o-1").await;
    assert_eq!(
        (state.as_str(), reason.as_deref()),
        ("compensated", Some("step \"ship\": rejected by the participant"))
    );
    assert_eq!(shop.sent("o-1").await[3..], ["pay:undo", "reserve:undo"]);
    // A no teaches something too.
    shop.start("o-2", &data(500)).await.unwrap();
    shop.tell("o-2:order:reserve", "rejected \"sold out\"").await;
    shop.is("o-2", "compensated").await;
    let sql = "SELECT data::text FROM oncebox.saga WHERE business_id = 'o-2'";
    let stored: String = shop.client.query_one(sql, &[]).await.unwrap().get(0);
    let stored: OrderData = serde_json::from_str(&stored).unwrap();
    assert_eq!(stored.refusal.as_deref(), Some("sold out"));
}

/// The participant acts after its deadline: the compensation comes as well, and the barrier decides
/// about both; here the answers only.
#[tokio::test]
async fn what_is_late_is_undone_and_its_answer_changes_nothing() {
    let mut shop = Shop::new(&[]).await;
    shop.start("o-1", &data(500)).await.unwrap();
    shop.tell("o-1:order:reserve", "done 77").await;
    assert_eq!(shop.look().await, 0, "nothing is due");
    shop.late("o-1", "pay").await;
    assert_eq!(shop.sent("o-1").await, ["reserve", "pay", "pay:undo"]);
    let before = shop.everything().await;
    assert!(is_handled(&shop.tell("o-1:order:pay", "done").await));
    assert!(is_handled(&shop.tell("o-1:order:pay", "rejected").await));
    assert_eq!(shop.everything().await, before);
    assert_eq!(shop.orchestrator.counts().late, 2);
    shop.tell("o-1:order:pay:undo", "done").await;
    shop.tell("o-1:order:reserve:undo", "done").await;
    shop.is("o-1", "compensated").await;
    let before = shop.everything().await;
    shop.tell("o-1:order:reserve", "done 78").await;
    assert_eq!(shop.everything().await, before, "nor does what comes after the end");
}

#[tokio::test]
async fn the_deadline_of_the_whole_turns_it_back() {
    let mut shop = Shop::new(&[]).await;
    shop.start("o-1", &data(500)).await.unwrap();
    shop.tell("o-1:order:reserve", "done 77").await;
    shop.client.batch_execute("UPDATE oncebox.saga SET deadline_at = clock_timestamp()").await.unwrap();
    shop.due("o-1").await;
    assert_eq!(shop.look().await, 1);
    assert_eq!(shop.sent("o-1").await, ["reserve", "pay", "pay:undo"]);
    assert_eq!(shop.state("o-1").await.1.as_deref(), Some("its deadline has passed"));
}

#[tokio::test]
async fn early_answers_wait_and_are_applied_when_their_time_comes() {
    let mut shop = Shop::new(&[]).await;
    // Before the saga is there at all.
    assert!(is_handled(&shop.tell("o-1:order:reserve", "done 77").await));
    assert_eq!(shop.look().await, 0);
    shop.start("o-1", &data(500)).await.unwrap();
    assert_eq!(shop.look().await, 1, "somebody finds out that it is there now");
    assert_eq!(shop.sent("o-1").await, ["reserve", "pay"]);
    // Before the step was sent: it is applied in the transaction that sends it.
    assert!(is_handled(&shop.tell("o-1:order:ship", "done").await));
    assert_eq!(shop.sent("o-1").await, ["reserve", "pay"]);
    shop.tell("o-1:order:pay", "done").await;
    shop.is("o-1", "completed").await;
    assert_eq!(shop.sent("o-1").await, ["reserve", "pay", "ship"]);
    assert_eq!(shop.number("SELECT count(*) FROM oncebox.saga_event").await, 0);
    assert_eq!(shop.orchestrator.counts().early, 2);
    let attempts = "SELECT count(*) FROM oncebox.inbox_attempt";
    assert_eq!(shop.number(attempts).await, 0, "no run counts as an attempt");
}

#[tokio::test]
async fn copies_of_an_answer_change_nothing() {
    let mut shop = Shop::new(&[]).await;
    shop.start("o-1", &data(500)).await.unwrap();
    let (inbox, handler) = (shop.replies(), shop.orchestrator.replies());
    let answer = reply("o-1:order:reserve", "done 77", "same");
    assert!(is_handled(&inbox.run(&handler, &answer).await.unwrap()));
    let before = shop.everything().await;
    assert!(matches!(inbox.run(&handler, &answer).await.unwrap(), Verdict::Replayed(_)));
    // The answer comes again in another message, with a key that the inbox does not know.
    assert!(is_handled(&shop.tell("o-1:order:reserve", "done 78").await));
    assert_eq!(shop.everything().await, before);
    assert_eq!(shop.orchestrator.counts().duplicate, 1);
}

#[tokio::test]
async fn a_business_id_names_one_saga_with_one_beginning() {
    let mut shop = Shop::new(&[]).await;
    let first = shop.start("o-1", &data(500)).await.unwrap();
    shop.tell("o-1:order:reserve", "done 77").await;
    let before = shop.everything().await;
    let again = shop.start("o-1", &data(500)).await.unwrap();
    assert_eq!((again.id, again.key, again.is_new), (first.id, first.key, false));
    let other = shop.start("o-1", &data(501)).await.unwrap_err();
    assert!(matches!(&other, Error::OtherData { business_id, .. } if business_id == "o-1"), "{other}");
    assert_eq!(shop.everything().await, before);
    for bad in ["", "a b", &"x".repeat(129)] {
        assert!(matches!(shop.start(bad, &data(1)).await, Err(Error::Invalid(_))), "{bad}");
    }
    let transaction = shop.client.transaction().await.unwrap();
    let key = Key::root("o-1").unwrap().step("order").unwrap();
    let taken = shop.orchestrator.start_under(&transaction, &shop.order, &key, "o-2", &data(1)).await;
    assert!(matches!(taken, Err(Error::KeyTaken(_))), "{taken:?}");
    drop(transaction);
    // Two transactions at once: one starts it, the other finds it.
    let (mut one, mut two) = (shop.env.pg().await, shop.env.pg().await);
    let (one, two) = (one.transaction().await.unwrap(), two.transaction().await.unwrap());
    let cents = data(7);
    assert!(shop.orchestrator.start(&one, &shop.order, "o-3", &cents).await.unwrap().is_new);
    let second = shop.orchestrator.start(&two, &shop.order, "o-3", &cents);
    let (committed, second) = tokio::join!(one.commit(), second);
    committed.unwrap();
    assert!(!second.unwrap().is_new);
}

#[tokio::test]
async fn answers_of_other_sagas_are_refused() {
    let mut shop = Shop::new(&[]).await;
    shop.start("o-1", &data(500)).await.unwrap();
    let before = shop.everything().await;
    for (key, answer, says) in [
        ("o-1:order:bake", "done", "has no step \"bake\""),
        ("o-1:order:ship:undo", "done", "has no step that is compensated \"ship\""),
        ("o-1", "done", "not the key of a saga's command"),
        ("o-1:order:reserve", "perhaps", "neither \"done\" nor \"rejected\""),
    ] {
        let told = refusal(shop.tell(key, answer).await);
        assert!(told.contains(says), "{told}");
    }
    assert!(is_handled(&shop.die("somebody-else:order:pay", 1).await));
    assert_eq!(shop.orchestrator.counts().foreign, 1);
    assert_eq!(shop.everything().await, before);
}

#[tokio::test]
async fn a_thousand_deadlines_pass_in_a_few_transactions() {
    let mut shop = Shop::new(&[]).await;
    let transaction = shop.client.transaction().await.unwrap();
    for number in 0..1000 {
        let id = format!("o-{number}");
        shop.orchestrator.start(&transaction, &shop.order, &id, &data(number)).await.unwrap();
    }
    transaction.commit().await.unwrap();
    let sql = "UPDATE oncebox.saga_step SET deadline_at = clock_timestamp();
               UPDATE oncebox.saga SET due_at = clock_timestamp()";
    shop.client.batch_execute(sql).await.unwrap();
    let timers = shop.orchestrator.timers(shop.env.pool(2));
    let begun = Instant::now();
    for _ in 0..10 {
        assert_eq!(timers.run_once().await.unwrap(), 100);
    }
    println!("1,000 deadlines took {:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(20), "a second and less on a machine of its own");
    assert_eq!(timers.run_once().await.unwrap(), 0);
    let undone = "SELECT count(*) FROM oncebox.message WHERE key LIKE '%:reserve:undo'";
    assert_eq!(shop.number(undone).await, 1000);
}

/// A deadline, of the step or of the whole, and the answer at the same moment: the one that has the
/// saga's row decides, and the other finds it decided. The answer sends the pivot, after which
/// there is no way back.
#[tokio::test]
async fn of_a_deadline_and_its_answer_the_first_wins() {
    let of_the_step = "UPDATE oncebox.saga_step SET deadline_at = clock_timestamp()
                       WHERE step = 'pay' AND saga_id = (SELECT id FROM oncebox.saga WHERE business_id = $1)";
    let of_the_whole = "UPDATE oncebox.saga SET deadline_at = clock_timestamp() WHERE business_id = $1";
    let mut shop = Shop::new(&[]).await;
    let (mut holder, reader) = (shop.env.pg().await, shop.env.pg().await);
    let waits = async |event: &str| {
        let sql = "SELECT FROM pg_stat_activity
                   WHERE wait_event_type = 'Lock' AND wait_event = $1 AND datname = current_database()";
        let probe = async || reader.query_opt(sql, &[&event]).await.unwrap();
        eventually("somebody waits", LIMIT, probe).await;
    };
    let slow = "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS
                'BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NEW; END'";
    shop.client.batch_execute(slow).await.unwrap();
    for (deadline, [first, second]) in [(of_the_step, ["o-1", "o-2"]), (of_the_whole, ["o-3", "o-4"])] {
        for id in [first, second] {
            shop.start(id, &data(500)).await.unwrap();
            shop.tell(&format!("{id}:order:reserve"), "done 7").await;
        }
        let (inbox, handler) = (shop.replies(), shop.orchestrator.replies());
        let passes = async |id: &str| {
            assert_eq!(shop.client.execute(deadline, &[&id]).await.unwrap(), 1);
            shop.due(id).await;
        };

        // The answer is first: the look for deadlines skips the locked saga, and changes nothing
        // later.
        passes(first).await;
        let held = holder.transaction().await.unwrap();
        let sql = "SELECT FROM oncebox.saga WHERE business_id = $1 FOR UPDATE";
        held.query(sql, &[&first]).await.unwrap();
        let message = reply(&format!("{first}:order:pay"), "done", &format!("in-time-{first}"));
        let looks = async {
            waits("transactionid").await;
            assert_eq!(shop.look().await, 0, "it is somebody else's");
            held.commit().await.unwrap();
        };
        let (answered, ()) = tokio::join!(inbox.run(&handler, &message), looks);
        assert!(is_handled(&answered.unwrap()));
        shop.look().await;
        assert_eq!(shop.look().await, 0, "it is not late any more");
        assert_eq!(shop.sent(first).await, ["reserve", "pay", "ship"], "{deadline}");

        // The deadline is first, and is held up while it writes: the answer waits, and is late.
        passes(second).await;
        let trigger =
            "CREATE TRIGGER hold BEFORE UPDATE ON oncebox.saga_step FOR EACH ROW EXECUTE FUNCTION hold()";
        shop.client.batch_execute(trigger).await.unwrap();
        let held = holder.transaction().await.unwrap();
        held.query("SELECT pg_advisory_xact_lock(7)", &[]).await.unwrap();
        let message = reply(&format!("{second}:order:pay"), "done", &format!("too-late-{second}"));
        let answers = async {
            waits("advisory").await;
            tokio::join!(inbox.run(&handler, &message), async {
                waits("transactionid").await;
                held.commit().await.unwrap();
            })
        };
        let (looked_at, (answered, ())) = tokio::join!(shop.look(), answers);
        assert_eq!(looked_at, 1);
        assert!(is_handled(&answered.unwrap()));
        assert_eq!(shop.sent(second).await, ["reserve", "pay", "pay:undo"], "{deadline}");
        shop.client.batch_execute("DROP TRIGGER hold ON oncebox.saga_step").await.unwrap();
    }
    assert_eq!(shop.orchestrator.counts().late, 2);
}

/// Where a step is answered in time, the time at which a process looks again stays as it is, so
/// that the saga's indexes do not change; looking then finds nothing, and puts it off.
#[tokio::test]
async fn a_due_time_that_comes_too_early_is_put_off_once_it_has_come() {
    let mut shop = Shop::new(&[]).await;
    shop.start("o-1", &data(500)).await.unwrap();
    let sql =
        "UPDATE oncebox.saga SET due_at = clock_timestamp() + interval '10 minutes' RETURNING due_at::text";
    let due: String = shop.client.query_one(sql, &[]).await.unwrap().get(0);
    shop.tell("o-1:order:reserve", "done 7").await;
    let sql = "SELECT due_at::text, due_at > clock_timestamp() + interval '50 minutes' FROM oncebox.saga";
    let row = shop.client.query_one(sql, &[]).await.unwrap();
    assert_eq!((row.get::<_, &str>(0), row.get(1)), (due.as_str(), false));
    shop.due("o-1").await;
    assert_eq!((shop.look().await, shop.look().await), (1, 0));
    assert!(shop.client.query_one(sql, &[]).await.unwrap().get::<_, bool>(1));
    assert_eq!(shop.sent("o-1").await, ["reserve", "pay"]);
    // One that comes too late is brought forward.
    shop.client.execute("UPDATE oncebox.saga SET due_at = due_at + interval '1 day'", &[]).await.unwrap();
    shop.tell("o-1:order:pay", "done").await;
    let sql = "SELECT due_at < clock_timestamp() + interval '2 hours' FROM oncebox.saga";
    assert!(shop.client.query_one(sql, &[]).await.unwrap().get::<_, bool>(0));
}

/// An answer for which no saga ever came is deleted after a week, and counted; a younger one stays.
#[tokio::test]
async fn answers_without_a_saga_are_swept() {
    let mut shop = Shop::new(&[]).await;
    for id in ["old", "young"] {
        assert!(is_handled(&shop.tell(&format!("{id}:order:reserve"), "done 7").await));
    }
    let age = "UPDATE oncebox.saga_event SET created_at = clock_timestamp() - interval '8 days'
               WHERE key = 'old:order'";
    assert_eq!(shop.client.execute(age, &[]).await.unwrap(), 1);
    let (timers, stop) = (shop.orchestrator.timers(shop.env.pool(2)), CancellationToken::new());
    let swept = async {
        eventually("it is swept", LIMIT, async || (shop.orchestrator.counts().orphans == 1).then_some(()))
            .await;
        stop.cancel();
    };
    tokio::join!(timers.run(stop.clone()), swept);
    let left = "SELECT string_agg(key, ', ') FROM oncebox.saga_event";
    let left: String = shop.client.query_one(left, &[]).await.unwrap().get(0);
    assert_eq!(left, "young:order");
    shop.start("young", &data(500)).await.unwrap();
    assert_eq!(shop.look().await, 1, "it still finds its saga");
    assert_eq!(shop.sent("young").await, ["reserve", "pay"]);
}
