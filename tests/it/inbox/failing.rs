//! The row of a message that fails, which operators read: in every mode, and that it goes. The
//! clients are in `clients::failing`.

use std::time::{Duration, SystemTime};

use oncebox_inbox::{Context, Handler, HandlerError, Inbox, Origin, Outcome, Received, Verdict};
use oncebox_tests::{TestEnv, eventually};
use tokio::time::timeout;

use crate::{
    inbox::support::{
        Does, Job, LIMIT, SCOPE, builder, count, effects, environment, inbox, insert, message, rested,
    },
    leased::support::{Pays, builder as leased_builder},
};

const SHORT: Duration = Duration::from_millis(500);
const LONG: Duration = Duration::from_secs(200);
/// Every statement that would change the record is noted.
const NOTES: &str = "
CREATE TABLE note (n int);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO public.note VALUES (1);
  RETURN NULL;
END $$;
CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON oncebox.inbox_attempt
FOR EACH STATEMENT EXECUTE FUNCTION note()";

/// In a stream.
fn stored(key: &str, n: i64, sequence: u64) -> Received {
    let stored_at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    message(key, n).with_origin(Origin { stream: "S".to_owned(), sequence, stored_at })
}

/// Reason, place, failures and the pause in seconds of the only row.
async fn row(env: &TestEnv) -> (String, String, i64, f64) {
    let sql = "SELECT reason, concat_ws(' ', stream, stream_sequence, subject), failures,
                      extract(epoch FROM due_at - failed_at)::float8
               FROM oncebox.inbox_attempt";
    let row = env.pg().await.query_one(sql, &[]).await.unwrap();
    (row.get(0), row.get(1), row.get(2), row.get(3))
}

/// Fails with a long reason while `n` is odd.
fn fails() -> Does {
    Does::new(|cx, job: Job| {
        Box::pin(async move {
            if job.n % 2 == 1 {
                return Err(format!("no ledger {}", "ä".repeat(600)).into());
            }
            Ok(Outcome::done(insert(cx, &job).await?))
        })
    })
}

/// A handler without a reply, which would be stored under its role.
struct LeavesItsRole;

impl Handler for LeavesItsRole {
    type Message = Job;
    type Reply = ();

    async fn handle(&self, cx: Context<'_>, job: Job) -> Result<Outcome<()>, HandlerError> {
        cx.transaction().batch_execute("SET LOCAL ROLE pg_monitor").await?;
        cx.transaction().execute("INSERT INTO effect (key, n) VALUES ('k', $1)", &[&job.n]).await?;
        Ok(Outcome::done(()))
    }
}

fn patient(env: &TestEnv) -> Inbox {
    builder(env).backoff(LONG, LONG * 4).build().unwrap()
}

#[tokio::test]
async fn a_failure_is_recorded_with_reason_place_and_due_time_in_each_mode() {
    let check = async |env: &TestEnv, failures: i64| {
        let (reason, place, found, pause) = row(env).await;
        assert!(reason.starts_with("no ledger ä") && reason.len() <= 1000, "{reason}");
        assert_eq!((place.as_str(), found), ("S 7 s.t", failures));
        let full = LONG.as_secs_f64() * if failures == 1 { 1.0 } else { 2.0 };
        assert!((full / 2.0 - 1.0..=full + 1.0).contains(&pause), "{pause}");
    };
    for mode in ["transaction", "batch", "lease"] {
        let env = environment().await;
        let leased = {
            let short = Inbox::builder(env.pool(8)).scope(SCOPE).single_tenant();
            short.backoff(LONG, LONG * 4).leased(Duration::from_secs(8)).build().unwrap()
        };
        let under_lease =
            Pays::new(|_, _| Box::pin(async { Err(format!("no ledger {}", "ä".repeat(600)).into()) }));
        for failures in 1..=2 {
            rested(&env).await;
            let failing = stored("k", 1, 7).deliveries(u64::try_from(failures).unwrap());
            match mode {
                "batch" => {
                    let others = [message("a", 2), message("b", 4)];
                    patient(&env).run_batch(&fails(), [&others[0], &failing, &others[1]]).await;
                }
                "lease" => {
                    let past = "UPDATE oncebox.inbox_claim SET lease_until = clock_timestamp()";
                    env.pg().await.execute(past, &[]).await.unwrap();
                    let retry = leased.run(&under_lease, &failing).await.unwrap();
                    assert!(matches!(retry, Verdict::Retry { .. }), "{retry:?}");
                }
                _ => drop(patient(&env).run(&fails(), &failing).await.unwrap()),
            }
            check(&env, failures).await;
        }
    }
}

/// Each process dies in the handler. The first death proves nothing, since others ran beside it.
#[tokio::test]
async fn an_attempt_that_ends_its_process_is_recorded_when_the_message_comes_again() {
    let env = environment().await;
    let hangs = Does::new(|_, _| Box::pin(std::future::pending()));
    let sql = "SELECT begun, concat_ws(' ', reason, stream, stream_sequence, subject, due_at)
               FROM oncebox.inbox_attempt WHERE failed_at IS NOT NULL";
    let mut deliveries = 1;
    let row = eventually("a failure is recorded", LIMIT, async || {
        deliveries += 1;
        let (inbox, dying) = (inbox(&env), stored("k", 1, 7).deliveries(deliveries));
        // The server may not know yet that the last one is gone.
        let _ = timeout(SHORT, inbox.run(&hangs, &dying)).await;
        env.pg().await.query_opt(sql, &[]).await.unwrap()
    })
    .await;
    assert_eq!(row.get::<_, i64>(0), 3, "two deaths, the second one alone, and this run");
    assert_eq!(row.get::<_, &str>(1), "the attempt left no trace: did it end the process? S 7 s.t");
    eventually("it is handled", LIMIT, async || {
        deliveries += 1;
        let again = stored("k", 1, 7).deliveries(deliveries);
        matches!(inbox(&env).run(&Does::effect(), &again).await, Ok(Verdict::Handled(_))).then_some(())
    })
    .await;
    assert_eq!((count(&env, "oncebox.inbox_attempt").await, effects(&env).await), (0, 1));
}

/// Also where the handler has left its transaction to a role that may not touch the record.
#[tokio::test]
async fn a_message_that_failed_and_then_succeeds_has_no_row() {
    let env = environment().await;
    let inbox = patient(&env);
    inbox.run(&fails(), &stored("k", 1, 7)).await.unwrap();
    assert_eq!(count(&env, "oncebox.inbox_attempt").await, 1);
    let pg = env.pg().await;
    pg.batch_execute(
        "GRANT INSERT ON effect TO pg_monitor; GRANT USAGE ON SEQUENCE effect_id_seq TO pg_monitor",
    )
    .await
    .unwrap();
    let again = stored("k", 1, 7).deliveries(2);
    let early = inbox.run(&LeavesItsRole, &again).await.unwrap();
    assert!(matches!(early, Verdict::Retry { after, .. } if after > LONG / 3), "its pause holds: {early:?}");
    rested(&env).await;
    let handled = inbox.run(&LeavesItsRole, &again).await.unwrap();
    assert!(matches!(handled, Verdict::Handled(_)), "{handled:?}");
    assert_eq!((count(&env, "oncebox.inbox_attempt").await, effects(&env).await), (0, 1));
}

#[tokio::test]
async fn under_a_lease_the_row_goes_when_the_message_ends() {
    let env = environment().await;
    for (key, dies) in [("done", false), ("dead", true)] {
        let leased = leased_builder(&env, Duration::from_secs(8)).build().unwrap();
        let fails = Pays::new(|_, _| Box::pin(async { Err("no ledger".into()) }));
        leased.run(&fails, &stored(key, 1, 7)).await.unwrap();
        assert_eq!(row(&env).await.0, "no ledger");
        env.pg()
            .await
            .execute("UPDATE oncebox.inbox_claim SET lease_until = clock_timestamp()", &[])
            .await
            .unwrap();
        let ends = Pays::new(move |_, _| {
            Box::pin(
                async move { Ok(if dies { Outcome::dead("no use") } else { Outcome::done(String::new()) }) },
            )
        });
        leased.run(&ends, &stored(key, 1, 7).deliveries(2)).await.unwrap();
        assert_eq!(count(&env, "oncebox.inbox_attempt").await, 0, "{key}");
    }
}

#[tokio::test]
async fn a_message_that_never_fails_touches_no_row() {
    let env = environment().await;
    env.pg().await.batch_execute(NOTES).await.unwrap();
    let inbox = inbox(&env);
    inbox.run(&Does::effect(), &stored("a", 1, 1)).await.unwrap();
    inbox.run_batch(&Does::effect(), [&stored("b", 2, 2), &stored("c", 3, 3)]).await;
    let leased = leased_builder(&env, Duration::from_secs(8)).build().unwrap();
    let done = Pays::new(|_, _| Box::pin(async { Ok(Outcome::done(String::new())) }));
    let other = "UPDATE oncebox.inbox_scope SET mode = 'lease'";
    env.pg().await.execute(other, &[]).await.unwrap();
    leased.run(&done, &stored("d", 4, 4)).await.unwrap();
    assert_eq!((effects(&env).await, count(&env, "note").await), (4, 0));
}
