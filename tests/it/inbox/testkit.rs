//! The test kit passes sound handlers, and catches the others: a test kit that finds nothing would
//! be no good.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicI64, Ordering::SeqCst},
    time::Duration,
};

use oncebox_inbox::{Context, Handler, HandlerError, Inbox, Outcome, Received};
use oncebox_outbox::{Message, Outbox};
use oncebox_testkit::{Report, Scenario, Scratch, TestKit, TestKitError};
use oncebox_tests::TestEnv;
use serde::Deserialize;
use tokio::time::sleep;
use tokio_postgres::NoTls;

#[derive(Deserialize)]
struct Deposit {
    account: i64,
    cents: i64,
}

async fn template() -> TestEnv {
    let env = TestEnv::new().await;
    let tables = "CREATE TABLE account (id bigint PRIMARY KEY, cents bigint);
                  INSERT INTO account VALUES (1, 0), (2, 0);
                  CREATE TABLE deposit (id bigserial PRIMARY KEY, key text, account bigint, cents bigint)";
    let client = env.pg().await;
    client.batch_execute(tables).await.unwrap();
    env
}

fn deposit(key: &str, account: i64, cents: i64) -> Received {
    Received::new("deposits", format!("{{\"account\":{account},\"cents\":{cents}}}"))
        .header("Idempotency-Key", key)
}

/// Two deposits, in any order.
fn kit(env: &TestEnv) -> TestKit {
    TestKit::new(env.database_url())
        .message(deposit("a", 1, 10))
        .message(deposit("b", 1, 20))
        .volatile("public.deposit", "id")
}

fn inbox(scratch: &Scratch) -> Inbox {
    Inbox::builder(scratch.pool(4)).scope("bank:deposit").single_tenant().build().unwrap()
}

async fn book(cx: &Context<'_>, deposit: &Deposit) -> Result<(), HandlerError> {
    let sql = "INSERT INTO deposit (key, account, cents) VALUES ($1, $2, $3)";
    cx.transaction().execute(sql, &[&cx.key().as_str(), &deposit.account, &deposit.cents]).await?;
    Ok(())
}

/// Reads, pauses, and writes back.
async fn add(cx: &Context<'_>, deposit: &Deposit, pause: Duration) -> Result<i64, HandlerError> {
    let row =
        cx.transaction().query_one("SELECT cents FROM account WHERE id = $1", &[&deposit.account]).await?;
    let cents = row.get::<_, i64>(0) + deposit.cents;
    sleep(pause).await;
    let sql = "UPDATE account SET cents = $2 WHERE id = $1";
    cx.transaction().execute(sql, &[&deposit.account, &cents]).await?;
    Ok(cents)
}

/// Everything through the transaction, under a lock.
struct Sound;

impl Handler for Sound {
    type Message = Deposit;
    type Reply = ();

    async fn handle(&self, cx: Context<'_>, deposit: Deposit) -> Result<Outcome<()>, HandlerError> {
        cx.lock([format!("account:{}", deposit.account)]).await?;
        book(&cx, &deposit).await?;
        add(&cx, &deposit, Duration::ZERO).await?;
        let message = Message::bytes(cx.key().step("booked")?, "booked".parse()?, "");
        Outbox::default().enqueue(cx.transaction(), &message).await?;
        Ok(Outcome::done(()))
    }
}

#[tokio::test]
async fn a_sound_handler_passes_every_scenario() {
    let env = template().await;
    let report = kit(&env).check(|scratch| (inbox(scratch), Sound)).await.unwrap();
    report.assert_once();
    // At the least, for each message: claim, lock, two of the handler's, outbox, commit.
    assert!(report.statements() >= 12, "{report}");
    // Each kill twice, duplicates, pairs, together, and the other order.
    assert!(report.scenarios() >= 2 * report.statements() + 4, "{report}");
}

/// The ways in which the failures were found.
fn kinds(report: &Report) -> BTreeSet<&'static str> {
    let kind = |scenario: &Scenario| match scenario {
        Scenario::Kill { carried_out: false, .. } => "kill before",
        Scenario::Kill { carried_out: true, .. } => "kill after",
        Scenario::Duplicates => "duplicates",
        Scenario::Pairs => "pairs",
        Scenario::Together => "together",
        Scenario::Order(_) => "order",
        _ => "other",
    };
    report.failures().iter().map(|failure| kind(&failure.scenario)).collect()
}

/// Books over a connection of its own.
struct Aside(String);

impl Handler for Aside {
    type Message = Deposit;
    type Reply = ();

    async fn handle(&self, cx: Context<'_>, deposit: Deposit) -> Result<Outcome<()>, HandlerError> {
        let (client, connection) = tokio_postgres::connect(&self.0, NoTls).await?;
        let booking = async {
            let sql = "INSERT INTO deposit (key, account, cents) VALUES ($1, $2, $3)";
            let done = client.execute(sql, &[&cx.key().as_str(), &deposit.account, &deposit.cents]).await;
            drop(client);
            done
        };
        let (done, _) = futures_util::join!(booking, connection);
        done?;
        Ok(Outcome::done(()))
    }
}

/// A write that is committed by itself stays when the transaction does not.
#[tokio::test]
async fn an_effect_on_a_connection_of_its_own_is_caught() {
    let env = template().await;
    let kit = TestKit::new(env.database_url()).message(deposit("a", 1, 10)).volatile("public.deposit", "id");
    let report = kit.check(|scratch| (inbox(scratch), Aside(scratch.url().to_owned()))).await.unwrap();
    assert_eq!(kinds(&report), BTreeSet::from(["kill after", "kill before"]), "{report}");
    let text = report.to_string();
    assert!(text.contains("public.deposit: 1 too many"), "{text}");
    assert!(text.contains("\"key\": \"a\""), "{text}");
    let panicked = std::panic::catch_unwind(|| report.assert_once());
    assert!(panicked.is_err());
}

/// Numbers deposits from memory.
#[derive(Default)]
struct Counting(AtomicI64);

impl Handler for Counting {
    type Message = Deposit;
    type Reply = ();

    async fn handle(&self, cx: Context<'_>, deposit: Deposit) -> Result<Outcome<()>, HandlerError> {
        let cents = self.0.fetch_add(1, SeqCst);
        book(&cx, &Deposit { cents, ..deposit }).await?;
        Ok(Outcome::done(()))
    }
}

#[tokio::test]
async fn a_counter_in_memory_is_caught() {
    let env = template().await;
    let report = kit(&env).check(|scratch| (inbox(scratch), Counting::default())).await.unwrap();
    let kinds = kinds(&report);
    for kind in ["kill before", "kill after", "order"] {
        assert!(kinds.contains(kind), "{kind}: {report}");
    }
}

/// Reads, adds, and writes back a value that others have changed meanwhile.
struct LosesUpdates;

impl Handler for LosesUpdates {
    type Message = Deposit;
    type Reply = ();

    async fn handle(&self, cx: Context<'_>, deposit: Deposit) -> Result<Outcome<()>, HandlerError> {
        // Long enough that both messages have read, on a busy machine too.
        add(&cx, &deposit, Duration::from_millis(500)).await?;
        Ok(Outcome::done(()))
    }
}

/// No kill and no duplicate shows it, but two messages at the same time do.
#[tokio::test]
async fn a_lost_update_is_caught() {
    let env = template().await;
    let report = kit(&env).kills_max(1).check(|scratch| (inbox(scratch), LosesUpdates)).await.unwrap();
    assert_eq!(kinds(&report), BTreeSet::from(["together"]), "{report}");
}

/// Writes the balance that this message found, so the result depends on which message came last.
struct DependsOnOrder;

impl Handler for DependsOnOrder {
    type Message = Deposit;
    type Reply = i64;

    async fn handle(&self, cx: Context<'_>, deposit: Deposit) -> Result<Outcome<i64>, HandlerError> {
        cx.lock(["account"]).await?;
        Ok(Outcome::done(add(&cx, &deposit, Duration::ZERO).await?))
    }
}

/// The replies tell how many came before: right for one ordering key, not for messages that may
/// come in any order.
#[tokio::test]
async fn an_effect_that_depends_on_the_order_is_caught() {
    let env = template().await;
    let report = kit(&env).kills_max(1).check(|scratch| (inbox(scratch), DependsOnOrder)).await.unwrap();
    assert!(kinds(&report).contains("order"), "{report}");
    assert!(report.to_string().contains("oncebox.inbox: "), "{report}");

    let ordered = TestKit::new(env.database_url())
        .message(deposit("a", 1, 10).header("Oncebox-Ordering-Key", "account 1"))
        .message(deposit("b", 1, 20).header("Oncebox-Ordering-Key", "account 1"));
    let report = ordered.kills_max(1).check(|scratch| (inbox(scratch), DependsOnOrder)).await.unwrap();
    assert_eq!(report.failures(), []);
}

/// A message that ends in a dead letter ends there once, however it gets there.
struct Fails;

impl Handler for Fails {
    type Message = Deposit;
    type Reply = ();

    async fn handle(&self, cx: Context<'_>, deposit: Deposit) -> Result<Outcome<()>, HandlerError> {
        book(&cx, &deposit).await?;
        match cx.message().delivery_count() {
            1 => Err(HandlerError::message("try again")),
            _ => Ok(Outcome::dead("never")),
        }
    }
}

#[tokio::test]
async fn dead_letters_are_compared_too() {
    let env = template().await;
    let kit = TestKit::new(env.database_url()).message(deposit("a", 1, 10));
    kit.check(|scratch| (inbox(scratch), Fails)).await.unwrap().assert_once();
}

#[tokio::test]
async fn what_the_kit_cannot_do_it_says() {
    let env = template().await;
    let none = TestKit::new(env.database_url()).check(|scratch| (inbox(scratch), Sound)).await;
    assert!(matches!(none, Err(TestKitError::Invalid(_))), "{none:?}");

    let few = kit(&env).kills_max(3).check(|scratch| (inbox(scratch), Sound)).await.unwrap();
    assert!(few.failures().is_empty() && few.statements() == 3, "{few}");
    assert!(few.to_string().contains("there are more: raise kills_max"), "{few}");
    assert!(std::panic::catch_unwind(|| few.assert_once()).is_err());

    let never =
        kit(&env).settle_within(Duration::from_millis(300)).check(|scratch| (inbox(scratch), Hangs)).await;
    assert!(matches!(never, Err(TestKitError::Undisturbed(_))), "{never:?}");

    let elsewhere = |scratch: &Scratch| {
        let builder = Inbox::builder(scratch.pool(4)).schema("nowhere".parse().unwrap());
        builder.scope("bank:deposit").single_tenant().build().unwrap()
    };
    let kit_with_error = kit(&env).settle_within(Duration::from_millis(300));
    let told = kit_with_error.check(|scratch| (elsewhere(scratch), Sound)).await.unwrap_err().to_string();
    assert!(told.contains("nowhere"), "the last error is part of the report: {told}");

    let _connected = env.pg().await;
    let used = kit(&env).check(|scratch| (inbox(scratch), Sound)).await.unwrap_err();
    assert!(used.to_string().contains("is somebody connected to it?"), "{used}");
}

struct Hangs;

impl Handler for Hangs {
    type Message = Deposit;
    type Reply = ();

    async fn handle(&self, _: Context<'_>, _: Deposit) -> Result<Outcome<()>, HandlerError> {
        std::future::pending().await
    }
}
