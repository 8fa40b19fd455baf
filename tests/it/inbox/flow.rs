//! The test kit runs a relay and consumers until all messages are done, and names those that are
//! not.

use std::time::Duration;

use oncebox_inbox::{Consumer, Context, Handler, HandlerError, Inbox, Outcome};
use oncebox_outbox::{Message, Outbox};
use oncebox_testkit::{Flow, FlowError};
use oncebox_tests::{TestEnv, eventually};
use tokio_util::sync::CancellationToken;

use crate::relay::{process::program, support::enqueue};

/// A cascade in two hops takes a second; the rest is for slow machines.
const LIMIT: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_secs(3);

/// Whether each of the cascade's first messages has caused two others, and the relay has long
/// settled them.
const BACKLOG: &str = "SELECT count(*) FILTER (WHERE m.key LIKE '%:next:next') = count(*) FILTER (WHERE m.key NOT LIKE '%:next')
      AND NOT EXISTS (SELECT FROM {schema}.lane_cursor AS c JOIN {schema}.message AS n ON n.lane = c.lane AND n.id > c.high)
      AND max(m.created_at) < clock_timestamp() - interval '0.7 seconds'
    FROM {schema}.message AS m";

/// The next message that a message causes.
#[derive(Clone)]
enum Then {
    Enqueue(String),
    End,
    Fail,
    GiveUp,
}

impl Handler for Then {
    type Message = serde_json::Value;
    type Reply = ();

    async fn handle(&self, cx: Context<'_>, _: serde_json::Value) -> Result<Outcome<()>, HandlerError> {
        // Slow enough that looks find it at work.
        cx.transaction().execute("SELECT pg_sleep(0.1)", &[]).await?;
        match self {
            Self::Fail => return Err("the shop is on fire".into()),
            Self::GiveUp => return Ok(Outcome::dead("nobody lives there")),
            Self::Enqueue(subject) => {
                let key = cx.key().step("next")?;
                Outbox::default()
                    .enqueue(cx.transaction(), &Message::json(key, subject.parse()?, &1)?)
                    .await?;
            }
            Self::End => {}
        }
        cx.transaction().execute("INSERT INTO handled VALUES ($1)", &[&cx.key().as_str()]).await?;
        Ok(Outcome::done(()))
    }
}

/// An order is charged, and the charge is shipped.
async fn flow(env: &TestEnv, ship: Then) -> Flow<'static> {
    env.pg().await.batch_execute("CREATE TABLE IF NOT EXISTS handled (key text)").await.unwrap();
    let mut flow = Flow::new(env.database_url(), env.nats_url()).program(program()).stream(format!(
        "{}={}",
        env.name(),
        env.subject(">")
    ));
    for (name, then) in [
        ("placed", Then::Enqueue(env.subject("charged"))),
        ("charged", Then::Enqueue(env.subject("shipped"))),
        ("shipped", ship),
    ] {
        let consumer =
            Consumer::new(env.jetstream().await, env.name(), name).filter_subject(env.subject(name));
        let inbox =
            Inbox::builder(env.pool(2)).scope(format!("shop:{name}")).single_tenant().build().unwrap();
        let (client, backlog) = (env.pg().await, env.schema.sql(BACKLOG));
        let running = async move {
            // The last to begin does so when the outbox has long been empty.
            if name == "shipped" {
                eventually("the charge is published", LIMIT, async || {
                    client.query_one(&backlog, &[]).await.unwrap().get::<_, bool>(0).then_some(())
                })
                .await;
            }
            consumer.run(inbox, then, CancellationToken::new()).await
        };
        flow = flow.consumer(format!("{}/{name}", env.name()), running);
    }
    flow
}

async fn handled(env: &TestEnv) -> i64 {
    env.pg().await.query_one("SELECT count(*) FROM handled", &[]).await.unwrap().get(0)
}

/// Each message of a cascade is handled when it returns, and no later message is waited for.
#[tokio::test]
async fn a_cascade_of_three_has_ended() {
    let env = TestEnv::new().await;
    for orders in 1..=3 {
        enqueue(&env.pg().await, &env.subject("placed"), &format!("order-{orders}-"), 0..5, 0).await;
        flow(&env, Then::End).await.run_until_quiet(LIMIT).await.unwrap();
        assert_eq!(handled(&env).await, 15 * orders);
    }
    // Nothing to do is quiet too.
    flow(&env, Then::End).await.run_until_quiet(LIMIT).await.unwrap();
}

/// The message that fails, its scope and the reason; and one that was given up.
#[tokio::test]
async fn a_message_that_is_not_done_is_named() {
    for (ship, expected) in [
        (Then::Fail, "order-0:next:next fails in shop:shipped, "),
        (Then::GiveUp, "order-0:next:next on {} is a dead letter of shop:shipped: nobody lives there"),
    ] {
        let env = TestEnv::new().await;
        env.stream().await;
        enqueue(&env.pg().await, &env.subject("placed"), "order-", 0..1, 0).await;
        let within = if matches!(ship, Then::Fail) { SHORT } else { LIMIT };
        let error = flow(&env, ship.clone()).await.run_until_quiet(within).await.unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, FlowError::NotDone(_)), "{text}");
        assert!(text.contains(&expected.replace("{}", &env.subject("shipped"))), "{text}");
        let is_failing = text.contains(" times so far: the shop is on fire");
        assert_eq!(is_failing, matches!(ship, Then::Fail), "{text}");
        assert_eq!(handled(&env).await, 2, "{text}");
    }
}

/// A subject that no stream takes, a consumer that has ended, a program that is not there.
#[tokio::test]
async fn what_cannot_run_is_said() {
    let env = TestEnv::new().await;
    enqueue(&env.pg().await, &env.subject("placed"), "order-", 0..1, 0).await;
    let alone = || Flow::new(env.database_url(), env.nats_url()).program(program());
    let text = alone().run_until_quiet(SHORT).await.unwrap_err().to_string();
    assert!(text.contains("order-0 on ") && text.contains(" is parked: no stream takes"), "{text}");

    let dies = async { Err("out of memory") };
    let error = alone().consumer("S/dies", dies).run_until_quiet(LIMIT).await.unwrap_err();
    assert_eq!(error.to_string(), "the consumer S/dies has ended: out of memory");

    let error = alone().stream("no stream").run_until_quiet(LIMIT).await.unwrap_err();
    assert!(matches!(error, FlowError::Relay { .. }), "{error}");
    assert!(error.to_string().contains("is not NAME=SUBJECTS"), "{error}");

    let error = alone().program("/nowhere").run_until_quiet(LIMIT).await.unwrap_err();
    assert!(matches!(error, FlowError::Program(..)), "{error}");
}
