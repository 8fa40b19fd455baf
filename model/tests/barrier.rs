//! The barrier of a saga's participant, checked exhaustively, and its mutants.

use oncebox_model::barrier::{Barrier, MUTANTS};
use stateright::{Checker as _, HasDiscoveries, Model as _};

#[test]
fn every_order_of_commands_leaves_one_effect_or_none() {
    for is_leased in [false, true] {
        let checker = Barrier { is_leased, mutant: None }.checker().spawn_bfs().join();
        println!(
            "leased {is_leased}: {} states, depth {}",
            checker.unique_state_count(),
            checker.max_depth()
        );
        checker.assert_properties();
    }
}

#[test]
fn every_mutant_breaks_its_promise() {
    for (mutant, is_leased, promise) in MUTANTS {
        let barrier = Barrier { is_leased: *is_leased, mutant: Some(*mutant) };
        let end = HasDiscoveries::AllOf([*promise].into());
        let checker = barrier.checker().finish_when(end).spawn_bfs().join();
        assert!(checker.discovery(promise).is_some(), "{mutant:?} keeps: {promise}");
    }
}
