//! Checks the specification exhaustively, and prints how far.

use stateright::{Checker as _, Model as _};
use oncebox_model::outbox::{Outbox, scope, mutant};

fn main() {
    let arg = std::env::args().nth(1).unwrap_or_default();
    if arg == "mutants" {
        let only = std::env::args().nth(2);
        for (m, s, p) in mutant::ALL.iter().filter(|(m, _, _)| only.as_ref().is_none_or(|o| format!("{m:?}") == *o)) {
            let t = tokio_now();
            let c = Outbox { scope: s, mutant: Some(*m) }.checker().threads(2).finish_when(stateright::HasDiscoveries::AllOf([*p].into())).target_state_count(3_000_000).spawn_bfs().join();
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
            let v = path.into_vec(); let last = v.last().map(|(s, _)| s.clone()); println!("{:?}\n{last:?}", v.iter().filter_map(|(_, a)| *a).collect::<Vec<_>>());
        }
    }
}
#[allow(clippy::disallowed_types)]
fn tokio_now() -> std::time::Instant { std::time::Instant::now() }
