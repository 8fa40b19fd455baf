//! The actions of operators. The catalogue states each once: its words, its options and its
//! consequence. The command line, the console and its API are made from it, and each of them gives
//! an [`Order`], which is counted and run here.

mod catalogue;
mod done;
mod engine;
mod entry;
mod facts;
mod fields;
mod kind;
mod order;
mod run;

pub(crate) use self::engine::{Acting, Listed, Page, Scan};
pub use self::{
    catalogue::{Action, Verb},
    done::Done,
    facts::GRAVE,
    fields::Field,
    kind::Kind,
    order::{CHOSEN_MAX, NOTE_BYTES_MAX, Order, Payload, is_chosen},
    run::Counted,
};
