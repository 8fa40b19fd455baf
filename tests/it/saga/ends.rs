//! Ends at the barrier belong to the run that was let through: another attempt, or another
//! transaction, ends nothing.

use oncebox_tests::TestEnv;
use tokio_postgres::{Client, GenericClient};

struct Stock {
    _env: TestEnv,
    client: Client,
}

impl Stock {
    async fn new() -> Self {
        let env = TestEnv::new().await;
        let client = env.pg().await;
        Self { _env: env, client }
    }

    /// In a transaction of its own.
    async fn asks(&mut self, function: &str, flag: bool, attempt: i32) -> String {
        let transaction = self.client.transaction().await.unwrap();
        let answer = ask(&transaction, function, flag, attempt).await.unwrap();
        transaction.commit().await.unwrap();
        answer
    }

    /// An end that fits no run is an error, and changes nothing.
    async fn refuses(&self, function: &str, flag: bool, attempt: i32) {
        let before = self.row().await;
        let refused = ask(&self.client, function, flag, attempt).await.unwrap_err();
        let refused = refused.as_db_error().unwrap();
        assert_eq!(refused.code().code(), "OB012");
        let expected = format!("barrier \"stock\": no run of attempt {attempt} at \"k\" is under way");
        assert_eq!(refused.message(), expected);
        assert_eq!(self.row().await, before, "{function} {flag} {attempt}");
    }

    async fn row(&self) -> String {
        let sql = "SELECT coalesce(string_agg(b::text, ' '), '') FROM oncebox.barrier AS b";
        self.client.query_one(sql, &[]).await.unwrap().get(0)
    }
}

async fn ask(
    client: &impl GenericClient,
    function: &str,
    flag: bool,
    attempt: i32,
) -> Result<String, tokio_postgres::Error> {
    let sql = format!("SELECT oncebox.{function}('stock', '', 'k', $1, attempt => $2)");
    Ok(client.query_one(&sql, &[&flag, &attempt]).await?.get(0))
}

#[tokio::test]
async fn an_action_that_was_not_let_through_takes_nothing_back() {
    let mut stock = Stock::new().await;
    stock.refuses("end_action", false, 1).await;
    assert_eq!(stock.asks("enter_action", false, 1).await, "act");
    assert_eq!(stock.asks("enter_action", false, 2).await, "acted");
    stock.refuses("end_action", false, 2).await;
    // Nor does a copy of the one that has acted, in another transaction.
    assert_eq!(stock.asks("enter_action", false, 1).await, "acted");
    stock.refuses("end_action", false, 1).await;
    assert_eq!(stock.asks("end_action", true, 1).await, "acted", "to say it again changes nothing");
    assert_eq!(stock.asks("enter_compensation", false, 1).await, "undo", "its effect is there");
}

#[tokio::test]
async fn a_compensation_that_was_not_let_through_does_not_free_the_next() {
    let mut stock = Stock::new().await;
    assert_eq!(stock.asks("enter_action", false, 1).await, "act");
    assert_eq!(stock.asks("enter_compensation", false, 1).await, "undo");
    assert_eq!(stock.asks("enter_compensation", false, 2).await, "nothing");
    stock.refuses("end_compensation", false, 2).await;
    stock.refuses("end_compensation", false, 1).await;
    assert_eq!(stock.asks("enter_compensation", false, 3).await, "nothing", "it is undone once");
}

/// In the transaction that was let through an end counts, also after a savepoint.
#[tokio::test]
async fn the_run_that_was_let_through_may_say_that_it_had_no_effect() {
    let mut stock = Stock::new().await;
    for (kind, attempt, flag, let_through, ended) in [
        ("action", 2, false, "act", "rejected"),
        ("action", 2, false, "act", "rejected"),
        ("action", 3, true, "act", "acted"),
        ("compensation", 2, false, "undo", "acted"),
        ("compensation", 3, false, "undo", "acted"),
    ] {
        let mut transaction = stock.client.transaction().await.unwrap();
        let savepoint = transaction.transaction().await.unwrap();
        let answer = ask(&savepoint, &format!("enter_{kind}"), false, attempt).await.unwrap();
        savepoint.commit().await.unwrap();
        let answers = (answer, ask(&transaction, &format!("end_{kind}"), flag, attempt).await.unwrap());
        assert_eq!(answers, (let_through.to_owned(), ended.to_owned()), "{kind} {attempt}");
        transaction.commit().await.unwrap();
    }
    assert_eq!(stock.asks("enter_compensation", false, 4).await, "undo");
}

#[tokio::test]
async fn a_leased_run_is_ended_by_its_own_attempt_only() {
    let mut stock = Stock::new().await;
    assert_eq!(stock.asks("enter_action", true, 2).await, "act");
    for had_effect in [true, false] {
        stock.refuses("end_action", had_effect, 1).await;
    }
    assert_eq!(stock.asks("end_action", true, 2).await, "acted");
    assert_eq!(stock.asks("enter_compensation", true, 3).await, "undo");
    for has_undone in [true, false] {
        stock.refuses("end_compensation", has_undone, 1).await;
    }
    assert_eq!(stock.asks("end_compensation", true, 3).await, "undone");
    stock.refuses("end_compensation", true, 3).await;
}
