//! The test kit for definitions of sagas: it passes a sound one, and catches another.

use oncebox_saga::Definition;
use oncebox_testkit::SagaKit;
use oncebox_tests::TestEnv;

use crate::saga::shop::{OrderData, data, order};

fn kit(env: &TestEnv, definition: &Definition<OrderData>) -> SagaKit<OrderData> {
    SagaKit::new(env.database_url(), definition, "o-1", data(500))
}

/// A user writes this for each way through a definition: here an answer, a deadline and a death.
#[tokio::test]
async fn the_test_kit_kills_at_each_transition_of_a_definition() {
    let (env, order) = (TestEnv::new().await, order(1, &[]));
    let undone = kit(&env, &order).done("reserve", &7).late("pay").dead("pay:undo", "it panics").check();
    let undone = Box::pin(undone).await.unwrap();
    undone.assert_ends("stuck");
    // The start, two answers, the deadline, and the kit's own message that lets it pass.
    assert_eq!(undone.report.statements(), 5, "{}", undone.report);
}

/// A definition whose commands differ from run to run, which the kit must find.
#[tokio::test]
async fn the_test_kit_finds_a_definition_that_makes_other_commands_after_a_crash() {
    use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

    static CALLS: AtomicI64 = AtomicI64::new(0);
    let step = oncebox_saga::Step::new("pay", "pay.do", |_: &OrderData| CALLS.fetch_add(1, Relaxed));
    let step = step.scope("pay");
    let counting = Definition::builder("order", 1).step(step.pivot()).build().unwrap();
    let env = TestEnv::new().await;
    let report = Box::pin(kit(&env, &counting).done("pay", &()).check()).await.unwrap();
    assert_eq!(report.state, "completed");
    let failures = report.report.failures();
    assert!(failures.iter().any(|failure| failure.difference.contains("oncebox.message")), "{failures:?}");
}
