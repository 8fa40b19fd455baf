//! Code outside of handlers, over each driver: it lists and cancels delayed messages, locks
//! entities, and a test asks which messages its transaction has enqueued. And the metrics of an
//! inbox, and updates of one version.

use std::time::Duration;

use diesel_async::{AnsiTransactionManager, AsyncPgConnection, TransactionManager};
use oncebox_diesel::Diesel;
use oncebox_inbox::{
    Context, Driver, Exclusive, HandlerError, LockError, Outcome, Verdict, handler_fn, metrics_text,
    one_version,
};
use oncebox_outbox::{Message, OpenTransaction, Outbox};
use oncebox_saga::Replier;
use oncebox_schema::SchemaName;
use oncebox_sea_orm::SeaOrm;
use oncebox_sqlx::Sqlx;
use oncebox_testkit::enqueued_over;
use oncebox_tests::{
    TestEnv,
    driven::{Job, SCOPE},
};
use sea_orm::TransactionTrait;

use super::parity::{diesel, inbox, message, sqlx};
use crate::inbox::support::environment;

const HOUR: Duration = Duration::from_secs(3600);

/// Of three messages one is due at once and one is cancelled.
async fn delayed<D, T>(transaction: &mut T)
where
    for<'a> &'a mut T: OpenTransaction<D>,
{
    let (outbox, key) = (Outbox::default(), |key: &str| key.parse().unwrap());
    let new = |key: &str| Message::bytes(key.parse().unwrap(), "a.b".parse().unwrap(), &b"\x00\xff"[..]);
    let later = new("o-1:later").delayed_by(2 * HOUR).ordering_key("o-1").header("x", "é").unwrap();
    for message in [new("o-1"), new("o-1:cancelled").delayed_by(HOUR), later] {
        outbox.enqueue(&mut *transaction, &message).await.unwrap();
    }
    let listed = outbox.list_delayed(&mut *transaction, &key("o-1"), 10).await.unwrap();
    let keys: Vec<_> = listed.iter().map(|message| message.key.as_str()).collect();
    assert_eq!(keys, ["o-1:cancelled", "o-1:later"]);
    assert_eq!((listed[1].subject.as_str(), listed[1].ordering_key.as_deref()), ("a.b", Some("o-1")));
    let wait = listed[1].not_before.duration_since(listed[1].created_at).unwrap();
    assert!(wait <= 2 * HOUR && wait > HOUR, "{wait:?}");
    assert_eq!(outbox.list_delayed(&mut *transaction, &key("o-1"), 1).await.unwrap().len(), 1);
    for is_delayed in [true, false] {
        let cancelled = outbox.cancel_delayed(&mut *transaction, &key("o-1:cancelled")).await.unwrap();
        assert_eq!(cancelled, is_delayed);
    }
}

/// The messages that a test sees in the same transaction.
async fn told<D: Driver>(connection: &mut D::Connection) {
    let made = enqueued_over::<D>(connection).await.unwrap();
    let keys: Vec<_> = made.iter().map(|message| (message.key.as_str(), &message.payload[..])).collect();
    assert_eq!(keys, [("o-1", &b"\x00\xff"[..]), ("o-1:later", b"\x00\xff")], "{made:?}");
    assert!(made[0].not_before.is_none() && made[1].not_before.is_some(), "{made:?}");
    assert_eq!(made[1].headers.get("x").map(String::as_str), Some("é"), "{made:?}");
}

/// Another session has the lock, on a connection that waits a moment only.
async fn taken(env: &TestEnv) -> String {
    let mut client = env.pg().await;
    let other = client.transaction().await.unwrap();
    other.batch_execute("SET LOCAL lock_timeout = '50ms'").await.unwrap();
    match oncebox_inbox::lock(&other, &SchemaName::default(), ["account:1"]).await {
        Err(LockError::Busy { .. }) => "busy".to_owned(),
        other => format!("{other:?}"),
    }
}

#[tokio::test]
async fn transactions_of_sqlx_list_cancel_and_lock() {
    let env = environment().await;
    let mut transaction = sqlx(&env).begin().await.unwrap();
    delayed::<Sqlx, _>(&mut transaction).await;
    told::<Sqlx>(&mut transaction).await;
    oncebox_sqlx::lock(&mut transaction, &SchemaName::default(), ["account:1"]).await.unwrap();
    assert_eq!(taken(&env).await, "busy");
    transaction.rollback().await.unwrap();
    assert_eq!(taken(&env).await, "Ok(())");
}

#[tokio::test]
async fn transactions_of_sea_orm_list_cancel_and_lock() {
    let env = environment().await;
    let connection = sea_orm::DatabaseConnection::from(sqlx(&env));
    let mut transaction = connection.begin().await.unwrap();
    delayed::<SeaOrm, _>(&mut transaction).await;
    told::<SeaOrm>(&mut transaction).await;
    oncebox_sea_orm::lock(&mut transaction, &SchemaName::default(), ["account:1"]).await.unwrap();
    assert_eq!(taken(&env).await, "busy");
    transaction.rollback().await.unwrap();
    assert_eq!(taken(&env).await, "Ok(())");
}

#[tokio::test]
async fn transactions_of_diesel_list_cancel_and_lock() {
    type Manager = AnsiTransactionManager;
    let env = environment().await;
    let mut object = diesel(&env).get().await.unwrap();
    let connection: &mut AsyncPgConnection = &mut object;
    Manager::begin_transaction(connection).await.unwrap();
    delayed::<Diesel, _>(connection).await;
    told::<Diesel>(connection).await;
    oncebox_diesel::lock(connection, &SchemaName::default(), ["account:1"]).await.unwrap();
    assert_eq!(taken(&env).await, "busy");
    Manager::rollback_transaction(connection).await.unwrap();
    assert_eq!(taken(&env).await, "Ok(())");
}

/// A handler finds its row changed; the inbox shows how the message ended.
async fn conflicts_are_measured<D: Exclusive>(driver: D) {
    let inbox = inbox(driver);
    let handler = handler_fn("rows", async |_: &&str, _: Context<'_, D>, job: Job| {
        one_version(u64::try_from(job.n).unwrap())?;
        Ok::<_, HandlerError>(Outcome::done(()))
    });
    for (rows, expected) in [(1, "Handled"), (0, "no longer the one"), (2, "changed 2 rows")] {
        let verdict = inbox.run(&handler, &message(&format!("k{rows}"), rows)).await.unwrap();
        assert!(format!("{verdict:?}").contains(expected), "{verdict:?}");
        assert_eq!(matches!(verdict, Verdict::Handled(_)), rows == 1, "{verdict:?}");
    }
    let text = metrics_text([&inbox]);
    for (outcome, count) in [("done", 1), ("retried", 2)] {
        let line = format!("oncebox_inbox_messages_total{{scope=\"{SCOPE}\",outcome=\"{outcome}\"}} {count}");
        assert!(text.lines().any(|other| other == line), "{text}");
    }
    assert!(text.contains("oncebox_inbox_consuming"), "{text}");
}

/// A participant of a saga over sqlx answers once, where it may.
#[tokio::test]
async fn a_participant_over_sqlx_answers() {
    let env = environment().await;
    let inbox = inbox(Sqlx::from(sqlx(&env)));
    let replier = Replier::new(Outbox::default(), ["sagas.replies"]);
    let handler = handler_fn(replier, async |replier: &Replier, mut cx: Context<'_, Sqlx>, job: Job| {
        let outcome = Outcome::done(job.n);
        if let Some(answer) = replier.answer(&cx, &outcome)? {
            Outbox::default().enqueue(cx.transaction(), &answer).await?;
        }
        Ok::<_, HandlerError>(outcome)
    });
    for (key, reply_to, handled) in [("a", "sagas.replies", true), ("b", "elsewhere", false)] {
        let command = message(key, 7).header("Oncebox-Reply-To", reply_to);
        let verdict = inbox.run(&handler, &command).await.unwrap();
        assert_eq!(matches!(verdict, Verdict::Handled(_)), handled, "{verdict:?}");
    }
    let sql = "SELECT key, subject, convert_from(payload, 'utf8') FROM oncebox.message";
    let row = env.pg().await.query_one(sql, &[]).await.unwrap();
    let told: [String; 3] = std::array::from_fn(|column| row.get(column));
    assert_eq!(told, ["a:reply", "sagas.replies", "7"]);
}

#[tokio::test]
async fn an_inbox_of_each_driver_has_metrics() {
    let env = environment().await;
    conflicts_are_measured(Sqlx::from(sqlx(&env))).await;
    let env = environment().await;
    conflicts_are_measured(SeaOrm::from(sea_orm::DatabaseConnection::from(sqlx(&env)))).await;
    let env = environment().await;
    conflicts_are_measured(Diesel::from(diesel(&env))).await;
}
