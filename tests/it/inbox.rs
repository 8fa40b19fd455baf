//! One message through the inbox. Which test holds which rule (R) and trap (X) of the idempotency notes:
//!
//! | rules and traps | test |
//! |---|---|
//! | R38, R65, R68, X47 | `ten_deliveries_have_one_effect_and_one_reply` |
//! | R39, X2, X10, X11, X13, X14 | `a_copy_of_a_message_in_flight_is_answered_at_once`, `fifty_copies_at_once_have_one_effect` |
//! | R30, R31, R34 | `a_crash_before_the_commit_leaves_nothing`, `a_commit_whose_answer_is_lost_..` |
//! | R42, R51, X31, X32, X33 | `the_same_key_with_another_payload_is_refused` |
//! | R17, R18, X20 to X24, X29 | `tenants_and_scopes_do_not_meet`, `identity::locks_of_different_fields_differ` |
//! | R15, R66, X26, X34, X35, X41 | `messages_without_identity_become_dead_letters` |
//! | X25, X27, X28 | the key vectors of `oncebox-schema`; keys are `text` of 255 bytes |
//! | R41, X37, X38 | `a_no_is_committed_and_replayed_as_the_same_no` |
//! | R35, X1, X4, X40 | `a_dead_message_is_rolled_back_recorded_and_not_run_again` |
//! | R62, R63 and messages that end the process | `the_delivery_limit_ends_a_message`, `inbox_consumer` |
//! | X3 | `a_swallowed_sql_error_is_not_success` |
//! | R44, X12, X16, X42 | `serialization_failures_run_again`, `failure::states_have_classes` |
//! | X15 | a row that is gone when it is read counts as in flight: the next look claims the key |
//! | R29, X36 | `an_unknown_status_is_an_error` |
//! | R61, R64, R1, R2 | `inbox_consumer` |

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use deadpool_postgres::{Manager, Pool};
use oncebox_inbox::{
    Answer, Context, Error, Handler, HandlerError, Inbox, KeySource, Outcome, Received, Verdict,
};
use oncebox_tests::{Proxy, TestEnv, eventually};
use tokio::{sync::Notify, task::JoinSet, time::timeout};
use tokio_postgres::{Config, NoTls};

use crate::inbox_support::{
    Does, Job, LIMIT, SCOPE, builder, count, dead_letters, effects, environment, inbox, insert, message,
};

fn done(reply: &str) -> Answer<String> {
    Answer::Done(reply.to_owned())
}

#[tokio::test]
async fn ten_deliveries_have_one_effect_and_one_reply_r65_x47() {
    let env = environment().await;
    let (inbox, handler) = (inbox(&env), Does::effect());
    for delivery in 1..=10 {
        let verdict = inbox.run(&handler, &message("k", 7).deliveries(delivery)).await.unwrap();
        let expected = done("effect 1");
        let expected = if delivery == 1 { Verdict::Handled(expected) } else { Verdict::Replayed(expected) };
        assert_eq!(verdict, expected);
    }
    assert_eq!((handler.runs(), effects(&env).await), (1, 1));
    assert_eq!((inbox.counts().handled, inbox.counts().replayed), (1, 9));
}

/// X2, X10, X11: the second copy neither runs nor waits, and learns of the outcome later.
#[tokio::test]
async fn a_copy_of_a_message_in_flight_is_answered_at_once_x2_x10() {
    let env = environment().await;
    let inbox = inbox(&env);
    let (entered, leave) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let handler = Does::new({
        let (entered, leave) = (Arc::clone(&entered), Arc::clone(&leave));
        move |cx, job| {
            let (entered, leave) = (Arc::clone(&entered), Arc::clone(&leave));
            Box::pin(async move {
                let reply = insert(cx, &job).await?;
                entered.notify_one();
                leave.notified().await;
                Ok(Outcome::done(reply))
            })
        }
    });
    let mut first = JoinSet::new();
    first.spawn({
        let (inbox, handler) = (inbox.clone(), handler.clone());
        async move { inbox.run(&handler, &message("k", 7)).await.unwrap() }
    });
    entered.notified().await;
    let second = timeout(Duration::from_secs(5), inbox.run(&handler, &message("k", 7).deliveries(2))).await;
    assert_eq!(second.expect("no waiting").unwrap(), Verdict::InFlight);
    leave.notify_one();
    assert_eq!(first.join_next().await.unwrap().unwrap(), Verdict::Handled(done("effect 1")));
    assert_eq!(inbox.run(&handler, &message("k", 7)).await.unwrap(), Verdict::Replayed(done("effect 1")));
    assert_eq!((handler.runs(), inbox.counts().in_flight), (1, 1));
}

#[tokio::test]
async fn fifty_copies_at_once_have_one_effect_r37() {
    let env = environment().await;
    let (inbox, handler) = (inbox(&env), Does::effect());
    let mut copies = JoinSet::new();
    for _ in 0..50 {
        let (inbox, handler) = (inbox.clone(), handler.clone());
        copies.spawn(async move { inbox.run(&handler, &message("k", 7)).await.unwrap() });
    }
    let verdicts = copies.join_all().await;
    assert_eq!(verdicts.iter().filter(|verdict| matches!(verdict, Verdict::Handled(_))).count(), 1);
    assert!(
        verdicts.iter().all(|v| matches!(v, Verdict::Handled(_) | Verdict::Replayed(_) | Verdict::InFlight))
    );
    assert_eq!((handler.runs(), effects(&env).await), (1, 1));
}

/// The process dies after the effect and before the commit; the connection is used again.
#[tokio::test]
async fn a_crash_before_the_commit_leaves_nothing() {
    let env = environment().await;
    let inbox = Inbox::builder(env.pool(1)).scope(SCOPE).single_tenant().build().unwrap();
    let entered = Arc::new(Notify::new());
    let stuck = Does::new({
        let entered = Arc::clone(&entered);
        move |cx, job| {
            let entered = Arc::clone(&entered);
            Box::pin(async move {
                insert(cx, &job).await?;
                entered.notify_one();
                std::future::pending().await
            })
        }
    });
    let mut process = JoinSet::new();
    process.spawn({
        let inbox = inbox.clone();
        async move { inbox.run(&stuck, &message("k", 7)).await.map(drop) }
    });
    entered.notified().await;
    process.shutdown().await;
    assert_eq!((effects(&env).await, count(&env, "oncebox.inbox").await), (0, 0));
    assert!(matches!(inbox.run(&Does::effect(), &message("k", 7)).await, Ok(Verdict::Handled(_))));
    assert_eq!(effects(&env).await, 1);
}

async fn through_proxy(env: &TestEnv) -> (Proxy, Inbox) {
    let direct: Config = env.database_url().parse().unwrap();
    let proxy = Proxy::start(SocketAddr::from(([127, 0, 0, 1], direct.get_ports()[0]))).await;
    let mut config = Config::new();
    config.host("127.0.0.1").port(proxy.port()).user("postgres").dbname(direct.get_dbname().unwrap());
    let pool = Pool::builder(Manager::new(config, NoTls)).max_size(2).build().unwrap();
    (proxy, Inbox::builder(pool).scope(SCOPE).single_tenant().build().unwrap())
}

/// An effect without a reply: nothing is pipelined before its COMMIT, so that the proxy hears the COMMIT's own answer.
struct Silent(Does);

impl Handler for Silent {
    type Message = Job;
    type Reply = ();

    async fn handle(&self, cx: &Context<'_>, job: Job) -> Result<Outcome<()>, HandlerError> {
        self.0.handle(cx, job).await?;
        Ok(Outcome::done(()))
    }
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_unknown_and_the_next_run_finds_out() {
    let env = environment().await;
    let (proxy, inbox) = through_proxy(&env).await;
    let handler = Silent(Does::effect());
    for (key, arrives) in [("arrives", true), ("does-not", false)] {
        inbox.check().await.unwrap();
        proxy.cut_when_client_sends(b"COMMIT AND CHAIN", arrives);
        let lost = inbox.run(&handler, &message(key, 7)).await;
        assert!(matches!(lost, Err(Error::Unavailable(..))), "{lost:?}");
        let again = eventually("PostgreSQL is back", LIMIT, async || {
            inbox.run(&handler, &message(key, 7).deliveries(2)).await.ok().filter(|v| *v != Verdict::InFlight)
        })
        .await;
        assert_eq!(matches!(again, Verdict::Replayed(_)), arrives, "{again:?}");
    }
    assert_eq!((handler.0.runs(), effects(&env).await), (3, 2));
}

/// X32: and the stored outcome stays what it is.
#[tokio::test]
async fn the_same_key_with_another_payload_is_refused_x32() {
    let env = environment().await;
    let (inbox, handler) = (inbox(&env), Does::effect());
    inbox.run(&handler, &message("k", 7)).await.unwrap();
    assert_eq!(inbox.run(&handler, &message("k", 8)).await.unwrap(), Verdict::Mismatch);
    assert_eq!(dead_letters(&env).await, ["the key was used before with another payload"]);
    assert_eq!(inbox.run(&handler, &message("k", 7)).await.unwrap(), Verdict::Replayed(done("effect 1")));
    assert_eq!((handler.runs(), effects(&env).await, inbox.counts().mismatched), (1, 1, 1));
}

#[tokio::test]
async fn tenants_and_scopes_do_not_meet_x20_to_x23_x29() {
    let env = environment().await;
    let handler = Does::effect();
    let tenants = Inbox::builder(env.pool(2)).scope("a:b").tenant_header("tenant").build().unwrap();
    let other = Inbox::builder(env.pool(2)).scope("a:c").tenant_header("tenant").build().unwrap();
    let mut replies = Vec::new();
    for (inbox, tenant) in [(&tenants, "acme"), (&tenants, "bolt"), (&other, "acme")] {
        let message = message("k", 7).header("Tenant", tenant);
        let Verdict::Handled(Answer::Done(reply)) = inbox.run(&handler, &message).await.unwrap() else {
            panic!("{tenant} was not handled");
        };
        assert_eq!(inbox.run(&handler, &message).await.unwrap(), Verdict::Replayed(done(&reply)));
        replies.push(reply);
    }
    assert_eq!(replies, ["effect 1", "effect 2", "effect 3"]);
}

/// X26, X34, X35, X41: poison headers end as dead letters, not in an endless redelivery or in one shared key.
#[tokio::test]
async fn messages_without_identity_become_dead_letters_x26_x34_x35_x41() {
    let env = environment().await;
    let handler = Does::effect();
    let inbox = builder(&env).tenant_header("tenant").build().unwrap();
    let keyed = || message("k", 7);
    let bare = || Received::new("s.t", "{\"n\":7}").header("tenant", "acme");
    let poison = [
        (keyed(), "tenant header \"tenant\" is missing"),
        (bare(), "no key: none of the headers"),
        (bare().header("Idempotency-Key", ""), "is no key"),
        (bare().header("Idempotency-Key", "x".repeat(256)), "256 bytes"),
        (bare().header("Idempotency-Key", "a\u{0}b"), "is no key"),
        (bare().header("Idempotency-Key", "a").header("Idempotency-Key", "b"), "several different values"),
    ];
    for (message, reason) in poison {
        let verdict = inbox.run(&handler, &message).await.unwrap();
        let Verdict::Dead { reason: found } = verdict else { panic!("{verdict:?} for {reason}") };
        assert!(found.contains(reason), "{found}");
    }
    assert_eq!(dead_letters(&env).await.len(), 6, "each of them, although none came from a stream");
    assert_eq!((handler.runs(), effects(&env).await, inbox.counts().dead), (0, 0, 6));
}

#[tokio::test]
async fn a_replay_of_the_relay_is_recognised_by_its_message_id() {
    let env = environment().await;
    let inbox =
        builder(&env).key_from([KeySource::header("Idempotency-Key"), KeySource::MsgId]).build().unwrap();
    let handler = Does::effect();
    inbox.run(&handler, &message("k", 7)).await.unwrap();
    let replayed = Received::new("elsewhere", "{\"n\":7}").header("Nats-Msg-Id", "k;r=2");
    assert_eq!(inbox.run(&handler, &replayed).await.unwrap(), Verdict::Replayed(done("effect 1")));
}

#[tokio::test]
async fn a_no_is_committed_and_replayed_as_the_same_no_x37_x38() {
    let env = environment().await;
    let inbox = inbox(&env);
    let handler = Does::new(|cx, job| {
        Box::pin(async move {
            insert(cx, &job).await?;
            Ok(Outcome::reject("insufficient funds".to_owned()))
        })
    });
    let no = Answer::Rejected("insufficient funds".to_owned());
    assert_eq!(inbox.run(&handler, &message("k", 7)).await.unwrap(), Verdict::Handled(no.clone()));
    assert_eq!(inbox.run(&handler, &message("k", 7)).await.unwrap(), Verdict::Replayed(no));
    assert_eq!((handler.runs(), effects(&env).await, inbox.counts().rejected), (1, 1, 1));
}

/// X1, X4, X40: what is given up is rolled back, recorded, and given the same answer ever after.
#[tokio::test]
async fn a_dead_message_is_rolled_back_recorded_and_not_run_again_x1_x4_x40() {
    let env = environment().await;
    let inbox = inbox(&env);
    let handler = Does::new(|cx, job| {
        Box::pin(async move {
            insert(cx, &job).await?;
            Ok(Outcome::dead("no such customer"))
        })
    });
    for _ in 0..3 {
        let verdict = inbox.run(&handler, &message("k", 7)).await.unwrap();
        assert_eq!(verdict, Verdict::Dead { reason: "no such customer".to_owned() });
    }
    assert_eq!((handler.runs(), effects(&env).await), (1, 0));
    assert_eq!(dead_letters(&env).await, ["no such customer"]);
    let row = env
        .pg()
        .await
        .query_one("SELECT headers::text, payload, key FROM oncebox.dead_letter", &[])
        .await
        .unwrap();
    assert_eq!(row.get::<_, String>(0), "{\"Idempotency-Key\": \"k\"}");
    assert_eq!((row.get::<_, Vec<u8>>(1), row.get::<_, String>(2)), (b"{\"n\":7}".to_vec(), "k".to_owned()));
}

/// X36, and messages that kill the process: the limit is checked before the handler runs, but after the inbox.
#[tokio::test]
async fn the_delivery_limit_ends_a_message() {
    let env = environment().await;
    let inbox = builder(&env).deliveries_max(3).build().unwrap();
    let failing = Does::new(|cx, job| {
        Box::pin(async move {
            insert(cx, &job).await?;
            Err(HandlerError::message("no luck"))
        })
    });
    for delivery in 1..=2 {
        let verdict = inbox.run(&failing, &message("k", 7).deliveries(delivery)).await.unwrap();
        let Verdict::Retry { after, reason } = verdict else { panic!("{verdict:?}") };
        assert!(after > Duration::ZERO && reason == "no luck");
    }
    let verdict = inbox.run(&failing, &message("k", 7).deliveries(3)).await.unwrap();
    assert_eq!(verdict, Verdict::Dead { reason: "delivery limit of 3 reached: no luck".to_owned() });

    let killer = inbox.run(&failing, &message("killer", 7).deliveries(4)).await.unwrap();
    assert!(matches!(killer, Verdict::Dead { .. }), "{killer:?}");
    assert_eq!(failing.runs(), 3, "the killer did not run a fourth time");
    assert_eq!((effects(&env).await, dead_letters(&env).await.len()), (0, 2));

    let handler = Does::effect();
    inbox.run(&handler, &message("late", 7)).await.unwrap();
    let verdict = inbox.run(&handler, &message("late", 7).deliveries(9)).await.unwrap();
    assert!(
        matches!(verdict, Verdict::Replayed(_)),
        "done is done, however often its ack got lost: {verdict:?}"
    );
}

/// X3: COMMIT of an aborted transaction reports success to the driver.
#[tokio::test]
async fn a_swallowed_sql_error_is_not_success_x3() {
    let env = environment().await;
    let inbox = inbox(&env);
    let swallowing = |reply: bool| {
        Does::new(move |cx, job| {
            Box::pin(async move {
                insert(cx, &job).await?;
                let _ = cx.transaction().execute("SELECT 1 / 0", &[]).await;
                let outcome =
                    if reply { Outcome::done("fine".to_owned()) } else { Outcome::reject(String::new()) };
                Ok(outcome)
            })
        })
    };
    for handler in [swallowing(true), swallowing(false)] {
        let verdict = inbox.run(&handler, &message("k", 7)).await.unwrap();
        let Verdict::Retry { reason, .. } = verdict else { panic!("{verdict:?}") };
        assert!(reason.contains("went on after a statement had failed"), "{reason}");
    }
    // Without a reply nothing is stored after the handler, so only the statement before COMMIT can tell.
    let verdict = inbox.run(&Silent(swallowing(true)), &message("silent", 7)).await.unwrap();
    assert!(
        matches!(&verdict, Verdict::Retry { reason, .. } if reason.contains("had failed")),
        "{verdict:?}"
    );
    assert_eq!((effects(&env).await, count(&env, "oncebox.inbox").await), (0, 0));
}

#[tokio::test]
async fn a_handler_that_ends_the_transaction_itself_is_found_out() {
    let env = environment().await;
    let inbox = inbox(&env);
    let handler = Does::new(|cx, job| {
        Box::pin(async move {
            insert(cx, &job).await?;
            cx.transaction().batch_execute("ROLLBACK").await?;
            Ok(Outcome::done(String::new()))
        })
    });
    let verdict = inbox.run(&handler, &message("k", 7)).await.unwrap();
    assert!(
        matches!(&verdict, Verdict::Retry { reason, .. } if reason.contains("ended the transaction")),
        "{verdict:?}"
    );
    assert_eq!((effects(&env).await, count(&env, "oncebox.inbox").await), (0, 0));
}

/// X64: and the connection that the panic left behind is of no harm to the next message.
#[tokio::test]
async fn a_panic_and_a_timeout_are_contained_x64() {
    let env = environment().await;
    let pool = env.pool(1);
    let inbox = Inbox::builder(pool)
        .scope(SCOPE)
        .single_tenant()
        .handler_timeout(Duration::from_millis(300))
        .build()
        .unwrap();
    let panicking = Does::new(|cx, job| {
        Box::pin(async move {
            insert(cx, &job).await?;
            panic!("on purpose")
        })
    });
    let slow = Does::new(|cx, job| {
        Box::pin(async move {
            insert(cx, &job).await?;
            cx.transaction().execute("SELECT pg_sleep(20)", &[]).await?;
            Ok(Outcome::done(String::new()))
        })
    });
    for (handler, part) in [(panicking, "panicked: on purpose"), (slow, "longer than 300ms")] {
        let verdict = inbox.run(&handler, &message("k", 7)).await.unwrap();
        assert!(matches!(&verdict, Verdict::Retry { reason, .. } if reason.contains(part)), "{verdict:?}");
        let (effect, after) = (Does::effect(), message(&part.replace([' ', ':'], "-"), 7));
        let next = timeout(Duration::from_secs(10), inbox.run(&effect, &after)).await;
        assert!(matches!(next.expect("no waiting").unwrap(), Verdict::Handled(_)));
    }
    assert_eq!(effects(&env).await, 2);
}

/// X12, X16, R44: conflicts are run again at once, by SQLSTATE.
#[tokio::test]
async fn serialization_failures_run_again_x12_x42() {
    let env = environment().await;
    let inbox = inbox(&env);
    let failing = |times: u64, code: &'static str| {
        let left = std::sync::atomic::AtomicU64::new(times);
        let left = Arc::new(left);
        Does::new(move |cx, job| {
            let left = Arc::clone(&left);
            Box::pin(async move {
                let reply = insert(cx, &job).await?;
                let more = left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok();
                if more {
                    let raise =
                        format!("DO $$ BEGIN RAISE EXCEPTION 'lost' USING ERRCODE = '{code}'; END $$");
                    cx.transaction().batch_execute(&raise).await?;
                }
                Ok(Outcome::done(reply))
            })
        })
    };
    let twice = failing(2, "40001");
    assert!(matches!(inbox.run(&twice, &message("a", 7)).await.unwrap(), Verdict::Handled(_)));
    assert_eq!(twice.runs(), 3);
    let always = failing(1000, "40P01");
    assert!(matches!(inbox.run(&always, &message("b", 7)).await.unwrap(), Verdict::Retry { .. }));
    assert_eq!(always.runs(), 5, "a bounded number of times");
    let other = failing(1, "23514");
    assert!(matches!(inbox.run(&other, &message("c", 7)).await.unwrap(), Verdict::Retry { .. }));
    assert_eq!(other.runs(), 1);
    assert_eq!(effects(&env).await, 1);
}

#[tokio::test]
async fn a_lost_connection_costs_no_attempt() {
    let env = environment().await;
    let inbox = builder(&env).deliveries_max(1).build().unwrap();
    let handler = Does::new(|cx, job| {
        Box::pin(async move {
            insert(cx, &job).await?;
            cx.transaction().execute("SELECT pg_terminate_backend(pg_backend_pid())", &[]).await?;
            Ok(Outcome::done(String::new()))
        })
    });
    let lost = inbox.run(&handler, &message("k", 7)).await;
    assert!(matches!(lost, Err(Error::Unavailable(..))), "{lost:?}");
    assert_eq!((dead_letters(&env).await.len(), effects(&env).await), (0, 0));
    assert!(matches!(inbox.run(&Does::effect(), &message("k", 7)).await.unwrap(), Verdict::Handled(_)));
}

#[tokio::test]
async fn what_cannot_be_decoded_or_stored_says_so() {
    let env = environment().await;
    let inbox = inbox(&env);
    let garbage = Received::new("s.t", "{\"n\":\"secret\"}").header("Idempotency-Key", "garbage");
    let verdict = inbox.run(&Does::effect(), &garbage).await.unwrap();
    assert!(
        matches!(&verdict, Verdict::Dead { reason } if reason.contains("decodes") && !reason.contains("secret")),
        "{verdict:?}"
    );
    let large = Does::new(|_, _| Box::pin(async { Ok(Outcome::done("x".repeat(1 << 20))) }));
    let verdict = inbox.run(&large, &message("large", 7)).await.unwrap();
    assert!(
        matches!(&verdict, Verdict::Retry { reason, .. } if reason.contains("the limit is 1048576")),
        "{verdict:?}"
    );
}

/// R29: a status of a newer version is an error, not one of ours.
#[tokio::test]
async fn an_unknown_status_is_an_error_r29() {
    let env = environment().await;
    let (inbox, handler) = (inbox(&env), Does::effect());
    inbox.run(&handler, &message("k", 7)).await.unwrap();
    let pg = env.pg().await;
    pg.batch_execute(
        "ALTER TABLE oncebox.inbox DROP CONSTRAINT inbox_status; UPDATE oncebox.inbox SET status = 'parked'",
    )
    .await
    .unwrap();
    let error = inbox.run(&handler, &message("k", 7)).await.unwrap_err();
    assert!(matches!(&error, Error::UnknownStatus { status, .. } if status == "parked"), "{error}");
    assert_eq!(handler.runs(), 1);
}

#[tokio::test]
async fn another_schema_version_is_refused() {
    let env = environment().await;
    env.pg()
        .await
        .batch_execute("INSERT INTO oncebox.migration (version, name) VALUES (9999, 'future')")
        .await
        .unwrap();
    let error = inbox(&env).run(&Does::effect(), &message("k", 7)).await.unwrap_err();
    assert!(matches!(error, Error::Version(_)), "{error}");
    assert!(error.to_string().contains("9999"), "{error}");
}
