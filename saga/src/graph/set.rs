//! Sets of steps.

use serde::{Deserialize, Serialize};

/// One bit of a set for each step.
pub(crate) const STEPS_MAX: usize = 64;

/// A set of steps, by their places in the definition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<usize>", into = "Vec<usize>")]
pub(crate) struct StepSet(pub(super) u64);

impl From<StepSet> for Vec<usize> {
    fn from(set: StepSet) -> Self {
        set.iter().collect()
    }
}

impl From<Vec<usize>> for StepSet {
    fn from(steps: Vec<usize>) -> Self {
        let mut set = Self::default();
        steps.into_iter().for_each(|step| set.insert(step));
        set
    }
}

impl StepSet {
    pub(crate) fn insert(&mut self, step: usize) {
        self.0 |= 1 << step;
    }

    pub(crate) fn contains(self, step: usize) -> bool {
        self.0 & 1 << step != 0
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        (0..STEPS_MAX).filter(move |step| self.contains(*step))
    }
}
