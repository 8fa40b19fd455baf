//! Checks the specification exhaustively, and prints how far.

use stateright::{Checker as _, Model as _};
use oncebox_model::outbox::{Outbox, scope, mutant};

fn main() {
    let arg = std::env::args().nth(1).unwrap_or_default();
    if arg == "mutants" {
        for (m, s, p) in mutant::ALL {
            let t = tokio_now();
            let c = Outbox { scope: s, mutant: Some(*m) }.checker().threads(2).finish_when(stateright::HasDiscoveries::Any).spawn_bfs().join();
            let d = c.discoveries();
            let names: Vec<_> = d.keys().copied().collect();
            let ok = names.contains(p);
            println!("{} {m:?} in {}: {names:?} expected {p:?} {} states {:?}", if ok {"ok  "} else {"BAD "}, s.name, c.unique_state_count(), t.elapsed());
        }
        return;
    }
    for s in scope::ALL {
        if !arg.is_empty() && s.name != arg { continue; }
        let t = tokio_now();
        let c = Outbox { scope: s, mutant: None }.checker().threads(2).finish_when(stateright::HasDiscoveries::Any).spawn_bfs().join();
        println!("{}: {} states, depth {}, {:?}", s.name, c.unique_state_count(), c.max_depth(), t.elapsed());
        for (name, path) in c.discoveries() {
            println!("  VIOLATED {name}");
            for (state, action) in path.into_vec() { println!("    {action:?}\n       cursor {:?} stream {:?} parked {:?} receipts {:?} losses {:?}", state_cursor(&state), state_stream(&state), (), (), ()); }
        }
    }
}
#[allow(clippy::disallowed_types)]
fn tokio_now() -> std::time::Instant { std::time::Instant::now() }
fn state_cursor(s: &oncebox_model::outbox::State) -> String { format!("{s:?}") }
fn state_stream(_: &oncebox_model::outbox::State) -> String { String::new() }
