//! The mistakes that a definition can have.

use super::{ATTEMPTS_MAX, SCOPE_BYTES_MAX, STEPS_MAX};

/// A mistake in a definition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Mistake {
    /// The definition has an invalid name.
    #[error("its name does not match [a-z0-9][a-z0-9._-]{{0,63}}, or is \"undo\"")]
    Name,
    /// There is no step, or there are too many.
    #[error("it has {0} steps; the limits are 1 and {STEPS_MAX}")]
    StepCount(usize),
    /// A step has an invalid name.
    #[error("step \"{0}\": its name does not match [a-z0-9][a-z0-9._-]{{0,63}}, or is \"undo\"")]
    StepName(String),
    /// Two steps have one name.
    #[error("step \"{0}\" is defined twice")]
    Duplicate(String),
    /// A step comes after one that is not there.
    #[error("step \"{step}\" comes after \"{after}\", which is not defined")]
    Undefined {
        /// The step.
        step: String,
        /// The step that it names.
        after: String,
    },
    /// Steps wait for one another.
    #[error("these steps wait for one another: {}", .0.join(", "))]
    Cycle(Vec<String>),
    /// A step waits for others that wait for one another.
    #[error("step \"{0}\" can never be reached: what it comes after waits for itself")]
    Unreachable(String),
    /// A step has an invalid subject.
    #[error("step \"{step}\": \"{subject}\" is not a subject to publish to: {problem}")]
    Subject {
        /// The step.
        step: String,
        /// The text that is not a subject.
        subject: String,
        /// Why.
        problem: String,
    },
    /// A step does not say who takes its commands, or in a way that no inbox can be called.
    #[error(
        "step \"{step}\": {scope:?} is not the scope of its participant's inbox, 1 to {SCOPE_BYTES_MAX} bytes without \
         control characters; a compensation may have a scope of its own"
    )]
    Scope {
        /// The step.
        step: String,
        /// The text that is not a scope, empty when there is none.
        scope: String,
    },
    /// Neither a compensation nor that none is needed.
    #[error("step \"{0}\" has neither a compensation nor no_compensation: say which")]
    Unsaid(String),
    /// Two pivots.
    #[error("\"{0}\" and \"{1}\" are both pivots; after one there is no way back already")]
    TwoPivots(String, String),
    /// A step that is neither before nor after the pivot.
    #[error("step \"{step}\" runs beside the pivot \"{pivot}\": nobody could say whether it is to be undone")]
    BesidePivot {
        /// The step.
        step: String,
        /// The pivot.
        pivot: String,
    },
    /// A compensation that would never be sent.
    #[error("step \"{0}\" has a compensation, but comes after the pivot: from there all goes forward")]
    CompensationAfterPivot(String),
    /// A deadline of no time, or of more than a year.
    #[error("step \"{0}\": its deadline is not 1 millisecond to 365 days")]
    Deadline(String),
    /// No attempt, or too many, or a pause that is too long.
    #[error("step \"{0}\": attempts are not 1 to {ATTEMPTS_MAX}, or the pause is longer than 365 days")]
    Attempts(String),
    /// The deadline of the whole is of no time, or of more than a year.
    #[error("its deadline is not 1 millisecond to 365 days")]
    OverallDeadline,
}

impl Mistake {
    /// The step that has to be mended, if it is one.
    pub(crate) fn step(&self) -> Option<&str> {
        match self {
            Self::StepName(step)
            | Self::Duplicate(step)
            | Self::Undefined { step, .. }
            | Self::Unreachable(step)
            | Self::Subject { step, .. }
            | Self::Scope { step, .. }
            | Self::Unsaid(step)
            | Self::TwoPivots(_, step)
            | Self::BesidePivot { step, .. }
            | Self::CompensationAfterPivot(step)
            | Self::Deadline(step)
            | Self::Attempts(step) => Some(step),
            Self::Cycle(steps) => steps.first().map(String::as_str),
            Self::Name | Self::StepCount(_) | Self::OverallDeadline => None,
        }
    }
}

/// A definition that cannot work, with everything that is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("saga \"{name}\", version {version}: {}", .mistakes.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
#[non_exhaustive]
pub struct InvalidDefinition {
    /// The definition's name.
    pub name: String,
    /// Its version.
    pub version: u16,
    /// All mistakes.
    pub mistakes: Vec<Mistake>,
}
