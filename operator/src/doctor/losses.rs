//! Messages that streams lost after they had acknowledged them, and the remedy so far.

use oncebox_connect::clock::with_text;

use super::{Diagnosis, Severity};
use crate::LossStatus;

pub(super) fn check(losses: &[LossStatus], found: &mut Vec<Diagnosis>) {
    found.extend(losses.iter().map(loss));
}

fn loss(loss: &LossStatus) -> Diagnosis {
    let (severity, consequence, remedy) = match loss.state.as_str() {
        "reported" => (
            Severity::Problem,
            "consumers never get these messages unless they are sent again before retention deletes them",
            format!("`oncebox outbox resend --stream {}`, with --dry-run to count them first", loss.stream),
        ),
        "being sent again" => (
            Severity::Warning,
            "until that has ended consumers lack some of them; what they have had they get again, and inboxes absorb it",
            "none is needed while a relay works".to_owned(),
        ),
        _ => (
            Severity::Note,
            "what was lost was sent again",
            "see why the server lost it: docs/durability.md has what an acknowledgement is worth".to_owned(),
        ),
    };
    let at = humantime::format_rfc3339_seconds(with_text(*loss.found_at));
    severity.of("loss", format!("{}; found {at}, {}", loss.what(), loss.state), consequence, remedy)
}
