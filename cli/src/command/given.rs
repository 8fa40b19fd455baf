//! The command that was typed.

use clap::ArgMatches;
use oncebox_connect::config::{ConfigError, Values};
use oncebox_operator::{Action as Catalogue, Kind};

use super::{
    Action, On, act, adopt, canary, console, databases, doctor, enqueue, events, given, list, migrate, pause,
    proof, prune, saga, scope, show, trace, undo, verify, why,
};

/// Its words, its own arguments, and those with its last word.
pub(super) struct Given<'a> {
    pub(super) path: &'a [&'a str],
    pub(super) flags: &'a ArgMatches,
    pub(super) above: &'a ArgMatches,
}

impl Given<'_> {
    pub(super) fn action(&self, on: &On, values: &Values) -> Result<Action, ConfigError> {
        let Self { path, flags, above } = *self;
        let place = || trace::Place { whole: on.config.clone(), ..databases::lone(&on.outbox) };
        Ok(match path {
            ["relay"] => Action::Relay(console::Console::beside_one(flags, on.config())?),
            ["status"] => Action::Status(given(flags)),
            ["expect", _] => Action::Expect(given(above)),
            ["console"] => {
                let config = on.config.as_deref().cloned();
                Action::Console(console::Console::new(flags, on.outbox.clone(), config)?)
            }
            ["trace"] => {
                let trace: trace::Trace = given(flags);
                let places = [vec![place()], trace::others(&trace.also, values)?].concat();
                Action::Trace(trace, places)
            }
            ["why"] => {
                let why: why::Why = given(flags);
                let places = [vec![place()], trace::others(&why.also, values)?].concat();
                Action::Why(why, places)
            }
            ["doctor"] => Action::other(given::<doctor::Doctor>(flags)),
            ["proof"] => Action::other(given::<proof::Prove>(flags).with_key()?),
            ["undo"] => Action::other(given::<undo::Undo>(flags)),
            ["canary", _] => Action::other(given::<canary::Canary>(above)),
            ["adopt"] => Action::other(given::<adopt::Adopt>(flags)),
            ["migrate"] => Action::other(given::<migrate::Migrate>(flags)),
            ["events", _] => Action::other(given::<events::Events>(above)),
            ["outbox", "dead" | "parked", "show"] => Action::other(given::<show::Message>(flags)),
            ["inbox", "dead", "show"] => Action::other(given::<show::Letter>(flags)),
            ["outbox", "pauses"] => Action::other(given::<pause::List>(flags)),
            ["outbox", "verify"] => Action::other(given::<verify::Verify>(flags)),
            ["outbox", "prune"] => Action::other(given::<prune::OfOutbox>(flags).of(&on.outbox)?),
            ["inbox", "scope", _] => Action::other(given::<scope::Scope>(above)),
            ["inbox", "prune"] => Action::other(given::<prune::OfInboxes>(flags)),
            ["outbox", "enqueue"] => {
                let message = given::<enqueue::Enqueue>(flags).message();
                Action::other(message.map_err(|mistake| ConfigError(vec![mistake]))?)
            }
            ["saga", "run"] => Action::other(given::<saga::Lead>(flags).read()?),
            ["saga", "apply"] => Action::other(given::<saga::Apply>(flags).read()?),
            ["saga", "start"] => Action::other(given::<saga::Start>(flags)),
            ["saga", "show"] => Action::other(given::<saga::Show>(flags)),
            ["saga", "graph"] => Action::other(given::<saga::Graph>(flags)),
            [group @ .., "list"] if let Some(kind) = Kind::of_command(group) => {
                Action::other(list::List::new(kind, flags)?)
            }
            other => {
                let verb = Catalogue::of_command(other).expect("the other commands are actions");
                match verb.kind {
                    Kind::Pauses => Action::other(pause::Pause::new(verb, flags)?),
                    _ => Action::other(act::Act::new(verb, flags)?),
                }
            }
        })
    }
}
