//! The ring of segments, checked exhaustively, and its mutants.

use oncebox_model::ring::{
    keys::{self, Keys},
    reading::{self, Reading},
};
use stateright::{Checker as _, HasDiscoveries, Model as _};

#[test]
fn every_order_of_turns_keeps_keys_unique() {
    let checker = Keys { mutant: None }.checker().threads(2).spawn_bfs().join();
    println!("keys: {} states, depth {}", checker.unique_state_count(), checker.max_depth());
    checker.assert_properties();
}

#[test]
fn every_order_of_turns_has_messages_read_and_kept() {
    let checker = Reading { mutant: None }.checker().threads(2).spawn_bfs().join();
    println!("reading: {} states, depth {}", checker.unique_state_count(), checker.max_depth());
    checker.assert_properties();
}

#[test]
fn every_mutant_breaks_its_promise() {
    for (mutant, promise) in keys::MUTANTS {
        let end = HasDiscoveries::AllOf([*promise].into());
        let checker = Keys { mutant: Some(*mutant) }.checker().finish_when(end).spawn_bfs().join();
        assert!(checker.discovery(promise).is_some(), "{mutant:?} keeps: {promise}");
    }
    for (mutant, promise) in reading::MUTANTS {
        let end = HasDiscoveries::AllOf([*promise].into());
        let checker = Reading { mutant: Some(*mutant) }.checker().finish_when(end).spawn_bfs().join();
        assert!(checker.discovery(promise).is_some(), "{mutant:?} keeps: {promise}");
    }
}
