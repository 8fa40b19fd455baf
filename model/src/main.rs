//! Checks the specification, and prints how far: all scopes, or one by its name.

use oncebox_model::outbox::{Outbox, scope};
use stateright::{Checker as _, HasDiscoveries, Model as _};
use tokio::time::Instant;

#[expect(clippy::print_stdout, reason = "a program for people")]
fn main() {
    let wanted = std::env::args().nth(1);
    for scope in scope::ALL.iter().filter(|scope| wanted.as_ref().is_none_or(|name| name == scope.name)) {
        let begun = Instant::now();
        let checker = Outbox { scope, mutant: None }.checker().threads(2);
        let checker = checker.finish_when(HasDiscoveries::Any).spawn_bfs().join();
        let (states, depth) = (checker.unique_state_count(), checker.max_depth());
        println!("{}: {states} states, depth {depth}, {:.1?}", scope.name, begun.elapsed());
        for (promise, path) in checker.discoveries() {
            println!("broken: {promise}\n{path}");
        }
    }
}
