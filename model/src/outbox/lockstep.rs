//! The model beside a real relay, step by step: the same producers and passes have to leave the
//! same cursor.

use super::{
    pass::Phase,
    postgres::{Fate, Snapshot},
    scope::Scope,
    world::{Action, Outbox, State},
};

/// A model that is led.
#[derive(Clone, Debug)]
pub struct Lockstep {
    model: Outbox,
    state: State,
}

/// Where a lane stands. A snapshot tells for each transaction that has begun whether it sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stands {
    pub high: u8,
    pub after: Option<u8>,
    pub snap: Vec<Option<bool>>,
    pub target: Option<Vec<Option<bool>>>,
}

impl Lockstep {
    pub fn new(scope: &'static Scope) -> Self {
        let model = Outbox { scope, mutant: None };
        let state = stateright::Model::init_states(&model).pop().expect("there is one");
        Self { model, state }
    }

    /// The actions that producers may take now.
    pub fn producers(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        self.model.producers(&self.state, &mut actions);
        actions
    }

    pub fn act(&mut self, action: Action) {
        self.state.apply(&self.model, action);
    }

    /// The id that was drawn last.
    pub fn last_id(&self) -> u8 {
        self.state.db.next_id - 1
    }

    /// A whole pass, in which the stream acknowledges as many messages as it is allowed to.
    pub fn pass(&mut self, mut acknowledged: usize) {
        self.act(Action::Look(0));
        self.act(Action::Read(0));
        while let Phase::Publishing(pass) = &self.state.relays[0].phase {
            let free = pass.free(&self.model);
            let Some(at) = free.first().filter(|_| acknowledged > 0) else { break };
            acknowledged -= 1;
            self.act(Action::Acknowledge(0, u8::try_from(*at).expect("a few rows")));
        }
        self.act(Action::Settle(0));
        self.state.relays[0].phase = Phase::Idle;
    }

    pub fn stands(&self) -> Stands {
        let cursor = &self.state.db.cursor;
        let sees = |snapshot: Snapshot| {
            let of = self.state.db.transactions.iter();
            of.map(|of| (of.fate != Fate::NotBegun).then(|| snapshot.sees(of.xact))).collect()
        };
        Stands {
            high: cursor.high,
            after: cursor.after,
            snap: sees(cursor.snap),
            target: cursor.target.map(sees),
        }
    }

    /// The messages that the stream has, in its order.
    pub fn delivered(&self) -> &[u8] {
        &self.state.stream.entries
    }
}
