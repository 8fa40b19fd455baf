//! What an inbox over a driver shows to Prometheus.

use super::{Driver, Inbox};
use crate::metrics::{Measure, Sample};

impl<D: Driver> Measure for Inbox<D> {
    fn scope(&self) -> &str {
        self.shared.scope()
    }

    fn counters(&self) -> *const () {
        self.shared.counters()
    }

    fn samples(&self) -> Vec<Sample> {
        self.shared.samples()
    }
}
