//! A scope claims its keys in one mode; a process of the other one is refused.

use std::time::Duration;

use oncebox_http::IdempotencyLayer;
use oncebox_inbox::{Consumer, Error, Verdict};
use tokio_util::sync::CancellationToken;

use crate::{
    http::support::Shop,
    inbox::support::{Does, SCOPE, builder, count, effects, environment, inbox, message, stream_environment},
    leased::support::{Mood, Pays, Provider},
};

fn is_refused<T: std::fmt::Debug>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(error @ Error::OtherMode { .. })
        if error.to_string().contains(SCOPE) && error.to_string().contains("change_inbox_mode"))
}

/// As in a rolling deploy that changes the mode: the new processes do not start, and nothing
/// happens twice.
#[tokio::test]
async fn a_scope_in_use_in_the_other_mode_is_refused() {
    let env = stream_environment().await;
    let (inbox, handler) = (inbox(&env), Does::effect());
    inbox.run(&handler, &message("k", 7)).await.unwrap();
    let provider = std::sync::Arc::<Provider>::default();
    let (leased, pays) =
        (builder(&env).leased(Duration::from_secs(8)).build().unwrap(), Pays::charge(&provider));
    let run = leased.run(&pays, &message("other", 7)).await;
    assert!(is_refused(&run), "{run:?}");
    assert!(is_refused(&leased.inbox().check().await));
    let consumer = Consumer::new(env.jetstream().await, env.name(), "d");
    let started = consumer.run(leased, pays.clone(), CancellationToken::new()).await;
    assert!(is_refused(&started), "{started:?}");
    assert_eq!((pays.runs(), count(&env, "oncebox.inbox_claim").await), (0, 0));

    // And the other way round.
    let leased = builder(&env).scope("tests:leased").leased(Duration::from_secs(8)).build().unwrap();
    leased.run(&pays, &message("k", 7)).await.unwrap();
    let inbox = builder(&env).scope("tests:leased").build().unwrap();
    for refused in
        [inbox.run(&handler, &message("k", 7)).await, leased.inbox().run(&handler, &message("k", 7)).await]
    {
        assert!(matches!(refused, Err(Error::OtherMode { .. })), "{refused:?}");
    }
    let batch = inbox.run_batch(&handler, &[message("k", 7), message("l", 8)]).await;
    assert!(batch.iter().all(|result| result.is_err()), "{batch:?}");
    assert_eq!(handler.runs(), 1);
}

/// Many processes of both modes start at once: those of one mode work.
#[tokio::test]
async fn of_both_modes_at_once_one_wins() {
    let env = environment().await;
    let provider = std::sync::Arc::<Provider>::default();
    let (handler, pays) = (Does::effect(), Pays::charge(&provider));
    let runs = (0..8).map(async |n| {
        let received = message("k", 7);
        let verdict = if n % 2 == 0 {
            builder(&env).build().unwrap().run(&handler, &received).await
        } else {
            builder(&env).leased(Duration::from_secs(8)).build().unwrap().run(&pays, &received).await
        };
        (n % 2, matches!(verdict, Err(Error::OtherMode { .. })))
    });
    let ended = futures_util::future::join_all(runs).await;
    let refused =
        |mode: i32| ended.iter().filter(|(other, is_refused)| *other == mode && *is_refused).count();
    assert!(matches!((refused(0), refused(1)), (0, 4) | (4, 0)), "{ended:?}");
    assert_eq!(handler.runs().min(1) + pays.runs().min(1), 1);
}

/// Deliberately: once nothing of the former mode is open.
#[tokio::test]
async fn an_operator_changes_the_mode_when_nothing_is_open() {
    let env = environment().await;
    let provider = std::sync::Arc::<Provider>::default();
    let (handler, pays) = (Does::effect(), Pays::charge(&provider));
    let leased = builder(&env).leased(Duration::from_secs(8)).build().unwrap();
    provider.mood(Mood::LosesAnswers);
    leased.run(&pays, &message("k", 7)).await.unwrap();
    let change = async |scope: &str, mode: &str| {
        let sql = format!("SELECT oncebox.change_inbox_mode('{scope}', '{mode}')");
        let changed = env.pg().await.batch_execute(&sql).await;
        changed.map_err(|error| error.as_db_error().unwrap().message().to_owned())
    };
    assert!(change(SCOPE, "transaction").await.unwrap_err().contains("have not ended"));
    env.pg().await.batch_execute("DELETE FROM oncebox.inbox_claim").await.unwrap();
    assert!(change(SCOPE, "transaction").await.unwrap_err().contains("may have happened"));
    env.pg().await.batch_execute("DELETE FROM oncebox.inbox_effect").await.unwrap();
    assert!(change(SCOPE, "batch").await.unwrap_err().contains("neither"));
    assert!(change("nobody", "transaction").await.unwrap_err().contains("not known"));
    change(SCOPE, "transaction").await.unwrap();
    let verdict = inbox(&env).run(&handler, &message("l", 7)).await.unwrap();
    assert!(matches!(verdict, Verdict::Handled(_)), "{verdict:?}");
    let restarted = builder(&env).leased(Duration::from_secs(8)).build().unwrap();
    assert!(is_refused(&restarted.run(&pays, &message("m", 7)).await));
    assert_eq!(effects(&env).await, 1);
}

/// Over HTTP a route is a scope.
#[tokio::test]
async fn a_route_in_use_in_the_other_mode_is_refused() {
    let shop = Shop::open().await;
    assert_eq!(shop.order("k", 7, "order").await.status, 201);
    let mode = "oncebox.inbox_scope WHERE mode = 'transaction' AND kind = 'http'";
    assert_eq!(count(&shop.env, mode).await, 1);
    let Shop { env, .. } = shop;
    let leased = IdempotencyLayer::builder(env.pool(4)).leased(Duration::from_secs(30));
    let other = Shop::on(env, leased).await;
    let refused = other.order("other", 7, "order").await;
    assert_eq!((refused.status, refused.problem().as_str()), (500, "set-up-wrongly"));
    assert_eq!(count(&other.env, "oncebox.inbox_claim").await, 0);
}
