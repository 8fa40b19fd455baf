//! The loops of a relay one by one, to be driven step by step: for tests, and for a program that
//! wants another life of a relay than [`Relay::serve`](crate::Relay::serve).

pub use crate::{
    pass::{
        Claimed, Pass, Published, Settled,
        canary::Canaries,
        maintenance::{Maintained, Maintainer},
        mover::Mover,
        recovery::Recovery,
        worker::Worker,
    },
    postgres::delayed::Moved,
};
