//! Sagas, checked exhaustively, and their mutants.

use oncebox_model::saga::{ALL, Leads, MUTANTS};
use stateright::{Checker as _, HasDiscoveries, Model as _};

#[test]
fn every_order_of_events_leads_a_saga_to_its_end() {
    for shape in ALL {
        let checker = Leads::new(shape, None).checker().threads(2).spawn_bfs().join();
        println!("{}: {} states, depth {}", shape.name, checker.unique_state_count(), checker.max_depth());
        checker.assert_properties();
    }
}

#[test]
fn every_mutant_breaks_its_promise() {
    for (mutant, shape, promise) in MUTANTS {
        let end = HasDiscoveries::AllOf([*promise].into());
        let checker =
            Leads::new(*shape, Some(*mutant)).checker().threads(2).finish_when(end).spawn_bfs().join();
        assert!(checker.discovery(promise).is_some(), "{mutant:?} keeps: {promise}");
    }
}
