//! The outbox, checked exhaustively within the bounds of each scope, and its mutants.

use oncebox_model::outbox::{Outbox, mutant, scope};
use stateright::{Checker as _, HasDiscoveries, Model as _};

/// A mutant can have endlessly many states.
const STATES_MAX: usize = 3_000_000;

#[test]
fn every_order_of_events_keeps_the_promises() {
    for scope in scope::ALL {
        let checker = Outbox { scope, mutant: None }.checker().threads(2).spawn_bfs().join();
        println!("{}: {} states, depth {}", scope.name, checker.unique_state_count(), checker.max_depth());
        checker.assert_properties();
    }
}

#[test]
fn every_mutant_breaks_its_promise() {
    assert!(mutant::ALL.len() >= 30, "{}", mutant::ALL.len());
    for (mutant, scope, promise) in mutant::ALL {
        let outbox = Outbox { scope, mutant: Some(*mutant) };
        let end = HasDiscoveries::AllOf([*promise].into());
        let checker = outbox.checker().threads(2).finish_when(end).target_state_count(STATES_MAX);
        let checker = checker.spawn_bfs().join();
        assert!(checker.discovery(promise).is_some(), "{mutant:?} keeps in \"{}\": {promise}", scope.name);
    }
}
