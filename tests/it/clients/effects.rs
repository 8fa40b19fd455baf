//! Effects outside the database, under a lease, in other languages: each answer of the database and
//! of a provider, an owner that is suspended, and cashiers that die.

use oncebox_tests::TestEnv;
use tokio::{process::Command, time::timeout};

use super::shop::{LIMIT, Programs};
use crate::leased::gateway::pay_once;

/// For each message the calls of its provider, the questions, the rows of its last writes, the
/// effects that are remembered, and how its runs ended.
const GO: &str = r#"begun: 1 calls, 0 asks, 1 rows, 0 effects: handled "receipt of begun:pay" | replayed "receipt of begun:pay"
done: 1 calls, 0 asks, 1 rows, 0 effects: retry as it was told | handled "receipt of done:pay"
rejected: 1 calls, 0 asks, 0 rows, 1 effects: dead effect "pay" was rejected: card declined
remembered: 1 calls, 0 asks, 0 rows, 1 effects: retry as it was told | dead effect "pay" was rejected: card declined
happened: 1 calls, 1 asks, 1 rows, 0 effects: retry the outcome of effect "pay" is unknown: connection reset | handled "found happened:pay"
early: 1 calls, 1 asks, 0 rows, 1 effects: retry the outcome of effect "pay" is unknown: connection reset | retry the outcome of effect "pay" is unknown: the provider knows nothing of it, but a call settles within 1m0s
early: 1 calls, 1 asks, 1 rows, 0 effects: handled "receipt of early:pay"
unknown: 1 calls, 2 asks, 0 rows, 1 effects: retry the outcome of effect "pay" is unknown: connection reset | retry the outcome of effect "pay" is unknown: the provider cannot tell yet | dead delivery limit of 3 reached: the outcome of effect "pay" is unknown: the provider cannot tell yet
no-answer: 1 calls, 1 asks, 0 rows, 1 effects: retry the outcome of effect "pay" is unknown: connection reset | retry the outcome of effect "pay" is unknown: out of order
never: 1 calls, 1 asks, 0 rows, 1 effects: retry the outcome of effect "pay" is unknown: connection reset | dead effect "pay" was rejected: unknown card
not-sent: 1 calls, 0 asks, 0 rows, 0 effects: retry effect "pay" failed: connection refused
not-sent: 1 calls, 0 asks, 1 rows, 0 effects: handled "receipt of not-sent:pay"
idempotent: 3 calls, 0 asks, 1 rows, 0 effects: retry the outcome of effect "pay" is unknown: connection reset | retry the outcome of effect "pay" is unknown: connection refused | handled "receipt of idempotent:pay"
own: 1 calls, 0 asks, 1 rows, 0 effects: handled "receipt of own:pay"
unsaid: 0 calls, 0 asks, 0 rows, 0 effects: retry effect "pay": it needs Call, and either Reconcile or IsProviderIdempotent
twice: 1 calls, 0 asks, 0 rows, 1 effects: retry effect "pay": it was done already, or is under way: each effect of a run needs a step of its own
swallowed: 1 calls, 1 asks, 1 rows, 0 effects: retry the handler went on after an effect; the outcome of effect "pay" is unknown | handled "done"
panics: 0 calls, 1 asks, 1 rows, 0 effects: retry the outcome of effect "pay" is unknown: the handler panicked: as it was told | handled "found panics:pay"
snoozed: 0 calls, 0 asks, 0 rows, 0 effects: retry snoozed: the ledger is closed | dead snoozed for too long, 24h0m0s: snoozed: the ledger is closed
lost: 0 calls, 0 asks, 0 rows, 0 effects: in_flight
fenced: 1 calls, 0 asks, 0 rows, 1 effects: in_flight
conflict: 1 calls, 0 asks, 1 rows, 0 effects: handled "receipt of conflict:pay"
commits: 1 calls, 0 asks, 0 rows, 1 effects: dead the handler sent COMMIT by itself, which stays, and then failed: the handler ended the transaction by itself
mismatch: 0 calls, 0 asks, 0 rows, 0 effects: dead the key was used before with another payload: mismatch
owner: handled
owner: in_flight
suspended: 2 calls, 1 rows
"#;

#[tokio::test]
async fn each_answer_has_its_end_in_go_and_a_suspended_owner_calls_and_writes_nothing() {
    let Some(programs) = Programs::of("go") else { return };
    let env = TestEnv::new().await;
    let mut program = Command::new(programs.file("effects"));
    program.env("DATABASE_URL", env.database_url()).kill_on_drop(true);
    let output = timeout(LIMIT, program.output()).await.expect("the program ends").unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), GO, "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_payment_is_made_once_by_cashiers_in_go_and_rust_that_die_or_hang() {
    let Some(programs) = Programs::of("go") else { return };
    pay_once(Some(&programs.file("paying"))).await;
}
