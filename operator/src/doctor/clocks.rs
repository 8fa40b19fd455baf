//! Clocks that differ.

use oncebox_connect::clock::Skew;

use super::Diagnosis;
use super::Severity::Warning;

/// Clocks that are kept by NTP are far closer.
const SKEW_SECONDS_MAX: f64 = 5.0;

pub(super) fn check(clocks: &[(&str, Option<Skew>)], found: &mut Vec<Diagnosis>) {
    for (server, skew) in clocks {
        let Some(skew) = skew.filter(|skew| skew.at_least().as_secs_f64() > SKEW_SECONDS_MAX) else {
            continue;
        };
        let side = if skew.seconds > 0.0 { "ahead of" } else { "behind" };
        found.push(Warning.of(
            "clock",
            format!("the clock of {server} is {:.1} s {side} this host's", skew.seconds.abs()),
            "times in logs, headers and commands (`replay --since`) do not match; the relay itself goes by the \
             database's clock alone, streams by that of NATS",
            "have all hosts keep time by NTP",
        ));
    }
}
