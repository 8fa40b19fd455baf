//! The rules by which an orchestrator decides, for the executable specification in `model/`, which
//! calls them: no part of the interface.

pub use crate::{
    decide::decide,
    progress::{
        Answer, Command, Direction, Event, Progress, Sending, State, StepProgress, StepState, Transition,
        Verdict,
    },
    recording::{Change, Drawing},
};
