//! The inbox, checked exhaustively, and its mutants.

use oncebox_model::inbox::{Inbox, MUTANTS};
use stateright::{Checker as _, HasDiscoveries, Model as _};

#[test]
fn every_order_of_events_keeps_the_promises() {
    for (is_leased, is_reused) in [(false, false), (true, false), (false, true), (true, true)] {
        let checker = Inbox { is_leased, is_reused, mutant: None }.checker().spawn_bfs().join();
        println!(
            "leased {is_leased}, reused {is_reused}: {} states, depth {}",
            checker.unique_state_count(),
            checker.max_depth()
        );
        checker.assert_properties();
    }
}

#[test]
fn every_mutant_breaks_its_promise() {
    for (mutant, is_leased, is_reused, promise) in MUTANTS {
        let inbox = Inbox { is_leased: *is_leased, is_reused: *is_reused, mutant: Some(*mutant) };
        let end = HasDiscoveries::AllOf([*promise].into());
        let checker = inbox.checker().finish_when(end).spawn_bfs().join();
        assert!(checker.discovery(promise).is_some(), "{mutant:?} keeps: {promise}");
    }
}
