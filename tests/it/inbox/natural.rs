//! Effects that are idempotent by nature. Which test holds which rule (R) and trap (X):

use std::time::Duration;

use oncebox_inbox::natural::{self, Change, Increment, Inserted, NaturalError};
use oncebox_outbox::{Key, Message, Outbox};
use oncebox_tests::TestEnv;
use tokio::{task::JoinSet, time::timeout};
use tokio_postgres::{Client, Transaction};

const LIMIT: Duration = Duration::from_secs(30);

const TABLES: &str = "
    CREATE TABLE subscription (id bigserial PRIMARY KEY, email text UNIQUE, cancelled boolean DEFAULT false);
    CREATE TABLE stock (item bigint PRIMARY KEY, free bigint);
    CREATE TABLE reservation (order_id bigint, item bigint, quantity bigint, status text, released_by text,
                              PRIMARY KEY (order_id, item));
    INSERT INTO stock VALUES (1, 10), (2, 10);
    INSERT INTO reservation VALUES (1, 1, 3, 'reserved', NULL), (1, 2, 4, 'reserved', NULL), (2, 1, 5, 'shipped', NULL);
    CREATE TABLE player (id bigint PRIMARY KEY, xp bigint);
    INSERT INTO player VALUES (1, 100);
    CREATE TABLE award (event text PRIMARY KEY, player bigint, xp bigint)";

async fn environment() -> TestEnv {
    let env = TestEnv::new().await;
    env.pg().await.batch_execute(TABLES).await.unwrap();
    env
}

/// Runs this `count` times at once, each over a connection of its own, and commits.
async fn at_once<T: Send + 'static>(
    env: &TestEnv,
    count: i64,
    act: impl AsyncFn(&Transaction<'_>, i64) -> T,
) -> Vec<T> {
    let acting = (0..count).map(async |number| {
        let mut client = env.pg().await;
        let transaction = client.transaction().await.unwrap();
        let result = act(&transaction, number).await;
        transaction.commit().await.unwrap();
        result
    });
    timeout(LIMIT, futures_util::future::join_all(acting)).await.unwrap()
}

async fn number(env: &TestEnv, sql: &str) -> i64 {
    env.pg().await.query_one(sql, &[]).await.unwrap().get(0)
}

const SUBSCRIBE: &str =
    "INSERT INTO subscription (email) VALUES ($1) ON CONFLICT (email) DO NOTHING RETURNING id";

/// The one that inserted tells, and in its transaction; the others learn which row there is.
#[tokio::test]
async fn of_many_insertions_one_is_new_and_one_tells_about_it() {
    let env = environment().await;
    let outcomes = at_once(&env, 20, async |transaction, number| {
        let email = "a@example.org";
        let existing = "SELECT id FROM subscription WHERE email = $1";
        match natural::insert(transaction, (SUBSCRIBE, &[&email]), (existing, &[&email])).await.unwrap() {
            Inserted::New(row) => {
                let key = Key::root(&format!("subscribed-{number}")).unwrap();
                let message = Message::bytes(key, "subscribed".parse().unwrap(), "");
                Outbox::default().enqueue(transaction, &message).await.unwrap();
                (true, row.get::<_, i64>(0))
            }
            Inserted::Existing(row) => (false, row.get(0)),
        }
    })
    .await;
    assert_eq!(outcomes.iter().filter(|(is_new, _)| *is_new).count(), 1);
    assert!(outcomes.iter().all(|(_, id)| *id == outcomes[0].1), "{outcomes:?}");
    assert_eq!(number(&env, "SELECT count(*) FROM subscription").await, 1);
    assert_eq!(number(&env, "SELECT count(*) FROM oncebox.message").await, 1);
}

/// DO NOTHING is not all there is to do.
#[tokio::test]
async fn a_cancelled_subscription_is_resumed_once() {
    let env = environment().await;
    env.pg().await.batch_execute("INSERT INTO subscription VALUES (7, 'a', true)").await.unwrap();
    let resumed = at_once(&env, 10, async |transaction, _| {
        let existing = "SELECT id, cancelled FROM subscription WHERE email = $1 FOR UPDATE";
        let Inserted::Existing(row) =
            natural::insert(transaction, (SUBSCRIBE, &[&"a"]), (existing, &[&"a"])).await.unwrap()
        else {
            panic!("it is there already");
        };
        let resume = "UPDATE subscription SET cancelled = false WHERE id = $1";
        match row.get("cancelled") {
            true => transaction.execute(resume, &[&row.get::<_, i64>("id")]).await.unwrap(),
            false => 0,
        }
    })
    .await;
    assert_eq!(resumed.iter().sum::<u64>(), 1);
}

/// Between the insertion that was refused and the look at the row that refused it.
#[tokio::test]
async fn a_row_that_vanishes_is_inserted_again() {
    let env = environment().await;
    env.pg().await.batch_execute("INSERT INTO subscription VALUES (7, 'a')").await.unwrap();
    let mut client = env.pg().await;
    let transaction = client.transaction().await.unwrap();
    let vanishes = "WITH deleted AS (DELETE FROM subscription WHERE email = $1) SELECT 1 WHERE false";
    let inserted = natural::insert(&transaction, (SUBSCRIBE, &[&"a"]), (vanishes, &[&"a"])).await.unwrap();
    assert!(matches!(inserted, Inserted::New(_)));
}

#[tokio::test]
async fn an_insertion_that_is_in_the_way_but_not_found_is_an_error() {
    let env = environment().await;
    env.pg().await.batch_execute("INSERT INTO subscription VALUES (7, 'a')").await.unwrap();
    let mut client = env.pg().await;
    let transaction = client.transaction().await.unwrap();
    let other = "SELECT id FROM subscription WHERE email = $1 || 'b'";
    let inserted = natural::insert(&transaction, (SUBSCRIBE, &[&"a"]), (other, &[&"a"]));
    let error = timeout(LIMIT, inserted).await.expect("not for ever").unwrap_err();
    assert!(error.to_string().contains("have both the same key"), "{error}");
}

const RELEASE: &str = "
    WITH released AS (
      UPDATE reservation SET status = 'released', released_by = $3
      WHERE order_id = $1 AND item = $2 AND status = 'reserved'
      RETURNING item, quantity)
    UPDATE stock SET free = free + released.quantity
    FROM released WHERE stock.item = released.item
    RETURNING released.quantity";
const STATE: &str =
    "SELECT released_by = $3, status, quantity FROM reservation WHERE order_id = $1 AND item = $2";

async fn release(transaction: &Transaction<'_>, order: i64, item: i64, attempt: &str) -> (&'static str, i64) {
    let parameters: &[&(dyn tokio_postgres::types::ToSql + Sync)] = &[&order, &item, &attempt];
    match natural::update(transaction, (RELEASE, parameters), (STATE, parameters)).await.unwrap() {
        Change::Applied(row) => ("applied", row.get("quantity")),
        Change::AlreadyApplied(row) => ("already applied", row.get("quantity")),
        Change::PreconditionFailed(row) => ("precondition failed", row.get("quantity")),
        Change::Missing => ("missing", 0),
    }
}

/// Copies of one attempt at once, and another attempt among them.
#[tokio::test]
async fn twenty_copies_of_a_release_give_back_what_was_reserved_once() {
    let env = environment().await;
    let mut outcomes =
        at_once(&env, 20, async |transaction, _| release(transaction, 1, 1, "cancel-1").await).await;
    outcomes.sort_unstable();
    assert_eq!(outcomes[..19], [("already applied", 3); 19]);
    assert_eq!(outcomes[19], ("applied", 3));
    let other = at_once(&env, 3, async |transaction, _| release(transaction, 1, 1, "cancel-2").await).await;
    assert_eq!(other, [("precondition failed", 3); 3]);
    assert_eq!(number(&env, "SELECT free FROM stock WHERE item = 1").await, 13);
}

/// Four answers, and a change only with the first.
#[tokio::test]
async fn a_change_tells_applied_already_applied_and_precondition_failed() {
    let env = environment().await;
    let cases = [
        ((1, 1, "a"), "applied"),
        ((1, 1, "a"), "already applied"),
        ((1, 1, "b"), "precondition failed"),
        ((2, 1, "a"), "precondition failed"),
        ((9, 9, "a"), "missing"),
    ];
    for ((order, item, attempt), expected) in cases {
        let outcomes =
            at_once(&env, 1, async |transaction, _| release(transaction, order, item, attempt).await).await;
        assert_eq!(outcomes[0].0, expected, "{order} {item} {attempt}");
    }
    assert_eq!(number(&env, "SELECT sum(free)::bigint FROM stock").await, 23);
    let mut client = env.pg().await;
    let transaction = client.transaction().await.unwrap();
    let (nothing, text) = ("UPDATE stock SET free = 0 WHERE false RETURNING 1", "SELECT 'true'::text");
    let error = natural::update(&transaction, (nothing, &[]), (text, &[])).await.unwrap_err();
    assert!(matches!(error, NaturalError::Misuse(text) if text.contains("not boolean")), "{error}");
}

/// An order's items have events of their own, or all but the first are lost.
#[tokio::test]
async fn items_of_one_order_are_events_of_their_own() {
    let env = environment().await;
    for item in [1, 2] {
        let outcomes =
            at_once(&env, 2, async |transaction, _| release(transaction, 1, item, "cancel-1").await).await;
        assert!(outcomes.iter().any(|(outcome, _)| *outcome == "applied"), "{item}: {outcomes:?}");
    }
    assert_eq!(number(&env, "SELECT sum(free)::bigint FROM stock").await, 27);
}

async fn award(
    transaction: &Transaction<'_>,
    event: &str,
    player: i64,
    xp: i64,
) -> Result<(bool, i64), NaturalError> {
    let once = "INSERT INTO award (event, player, xp) VALUES ($1, $2, $3) ON CONFLICT (event) DO NOTHING";
    let add = "UPDATE player SET xp = xp + $2 WHERE id = $1 RETURNING xp";
    let current = "SELECT xp FROM player WHERE id = $1";
    let awarded = natural::increment(
        transaction,
        (once, &[&event, &player, &xp]),
        (add, &[&player, &xp]),
        (current, &[&player]),
    )
    .await?;
    Ok(match awarded {
        Increment::Applied(row) => (true, row.get(0)),
        Increment::AlreadyApplied(row) => (false, row.get(0)),
    })
}

/// Five copies of each of twelve awards, all at once.
#[tokio::test]
async fn awards_in_any_order_count_once_each() {
    let env = environment().await;
    let awarded = at_once(&env, 60, async |transaction, number| {
        let event = number % 12;
        award(transaction, &format!("lesson-{event}"), 1, event).await.unwrap().0
    })
    .await;
    assert_eq!(awarded.iter().filter(|first| **first).count(), 12);
    assert_eq!(number(&env, "SELECT xp FROM player").await, 100 + (0..12).sum::<i64>());
}

/// With the player's balance, not with the event's value.
#[tokio::test]
async fn a_repeated_award_is_answered_with_the_players_points() {
    let env = environment().await;
    let mut client = env.pg().await;
    let transaction = client.transaction().await.unwrap();
    assert_eq!(award(&transaction, "a", 1, 10).await.unwrap(), (true, 110));
    assert_eq!(award(&transaction, "b", 1, 5).await.unwrap(), (true, 115));
    assert_eq!(award(&transaction, "a", 1, 10).await.unwrap(), (false, 115));
}

/// An award to an unknown account is an error, so that its event is not recorded as if it had
/// happened.
#[tokio::test]
async fn an_increment_of_nothing_is_an_error() {
    let env = environment().await;
    let mut client = env.pg().await;
    for repetition in [false, true] {
        let transaction = client.transaction().await.unwrap();
        if repetition {
            transaction.execute("INSERT INTO award VALUES ('a', 9, 1)", &[]).await.unwrap();
        }
        let error = award(&transaction, "a", 9, 10).await.unwrap_err();
        assert!(error.to_string().contains("is not there"), "{error}");
    }
    assert_eq!(number(&env, "SELECT count(*) FROM award").await, 0);
}

/// Both in one transaction, by type.
#[tokio::test]
async fn a_crash_between_event_and_increment_leaves_neither() {
    let env = environment().await;
    let mut blocker: Client = env.pg().await;
    let blocking = blocker.transaction().await.unwrap();
    blocking.execute("UPDATE player SET xp = xp", &[]).await.unwrap();
    let mut crashing = JoinSet::new();
    let mut client = env.pg().await;
    let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    crashing.spawn(async move {
        let transaction = client.transaction().await.unwrap();
        let _ = award(&transaction, "a", 1, 10).await;
    });
    let sql = "SELECT 1 FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock'";
    let watcher = env.pg().await;
    oncebox_tests::eventually("the increment waits, its event is inserted", LIMIT, async || {
        watcher.query_opt(sql, &[&pid]).await.unwrap()
    })
    .await;
    crashing.shutdown().await;
    blocking.rollback().await.unwrap();
    let outcomes =
        at_once(&env, 1, async |transaction, _| award(transaction, "a", 1, 10).await.unwrap()).await;
    assert_eq!(outcomes, [(true, 110)], "the event is not taken for one that happened");
}
