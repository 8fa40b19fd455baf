//! The values in PostgreSQL's errors reach no table and no log.

use std::time::Duration;

use std::sync::Arc;

use oncebox_inbox::{HandlerError, Outcome, Verdict};
use oncebox_tests::Log;
use tokio_postgres::types::Type;

use crate::{
    inbox::support::{Does, builder, environment, message, rested, tried},
    leased::support::Pays,
};

/// DETAIL may hold whole rows. It reaches neither the reason, nor a table, nor the log, however the
/// error is wrapped.
#[tokio::test]
async fn details_of_an_sql_error_are_neither_stored_nor_logged() {
    type Wrap = fn(tokio_postgres::Error) -> HandlerError;
    const SECRET: &str = "4111-1111-1111-1111";
    let env = environment().await;
    env.pg().await.batch_execute("CREATE TABLE card (number text UNIQUE)").await.unwrap();
    let insert = "INSERT INTO card VALUES ('4111-1111-1111-1111')";
    env.pg().await.batch_execute(insert).await.unwrap();
    let (log, _guard) = Log::of_this_thread();
    let inbox = builder(&env).attempts_max(2).build().unwrap();
    let wraps: [(&str, Wrap); 4] = [
        ("bare", |error| error.into()),
        ("anyhow", |error| anyhow::Error::from(error).into()),
        ("context", |error| anyhow::Error::from(error).context("insert a card").into()),
        ("text", |error| HandlerError::message(format!("{:#}", anyhow::Error::from(error)))),
    ];
    for (key, wrap) in wraps {
        let handler = Does::new(move |cx, _| {
            Box::pin(async move {
                cx.transaction().batch_execute(insert).await.map_err(wrap)?;
                Ok(Outcome::done(String::new()))
            })
        });
        for delivery in 1..=2 {
            rested(&env).await;
            let ended = inbox.run(&handler, &message(key, 7).deliveries(delivery)).await.unwrap();
            let told = format!("{ended:?}");
            assert!(told.contains("card_number_key") && !told.contains(SECRET), "{told}");
        }
    }
    // At the commit, where the error comes from a statement that the handler has left to it.
    let deferring = Does::new(|cx, _| {
        Box::pin(async move {
            cx.defer_typed("INSERT INTO card VALUES ($1)", &[(&SECRET, Type::TEXT)])?;
            Ok(Outcome::done(String::new()))
        })
    });
    tried(&env, "deferred", 1).await;
    let ended = inbox.run(&deferring, &message("deferred", 7).deliveries(2)).await.unwrap();
    assert!(matches!(ended, Verdict::Dead { .. }), "{ended:?}");
    let leased = builder(&env).scope("tests:leased").leased(Duration::from_secs(8)).build().unwrap();
    let paying = Pays::charge(&Arc::default()).finishing(move |cx| {
        Box::pin(async move {
            cx.transaction().batch_execute(insert).await?;
            Ok(())
        })
    });
    leased.run(&paying, &message("leased", 7)).await.unwrap();
    let told = "SELECT string_agg(t, ' ') FROM (SELECT l::text FROM oncebox.dead_letter AS l UNION ALL \
                SELECT convert_from(outcome, 'UTF8') FROM oncebox.inbox UNION ALL \
                SELECT reason FROM oncebox.inbox_claim) AS told (t)";
    let told: String = env.pg().await.query_one(told, &[]).await.unwrap().get(0);
    for told in [told, log.text()] {
        assert!(told.contains("card_number_key"), "{told}");
        assert!(!told.contains(SECRET) && !told.contains("DETAIL"), "{told}");
    }
}
