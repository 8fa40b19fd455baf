//! What a full stream refused of a lane in a pass.

use std::collections::BTreeSet;

use crate::delivery::{message::Message, outcome::Outcome};

/// What a full stream refused of a lane.
pub(super) struct Refused<'m> {
    pub(super) subjects: Vec<&'m str>,
    /// The bytes of its smallest payload; 0 when fewer bytes would not help.
    pub(super) smallest: i64,
    /// Messages before it were taken.
    pub(super) is_moving: bool,
}

impl<'m> Refused<'m> {
    /// Of a lane's rows, from the first refused one on.
    pub(super) fn new(rows: &[usize], first: usize, messages: &'m [Message], outcomes: &[Outcome]) -> Self {
        let rows = rows[first..].iter().filter(|row| is_refused(&outcomes[**row]));
        let subjects: BTreeSet<&str> = rows.clone().map(|row| &*messages[*row].subject).collect();
        let bytes =
            rows.map(|row| if spares_smaller(&outcomes[*row]) { messages[*row].payload_bytes } else { 0 });
        let smallest = bytes.min().map_or(0, |bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
        Self { subjects: subjects.into_iter().collect(), smallest, is_moving: first > 0 }
    }
}

/// The first of a lane's rows that a full stream refused, when nothing else became of those after
/// it.
pub(super) fn held_up(rows: &[usize], outcomes: &[Outcome]) -> Option<usize> {
    let first = rows.iter().position(|row| is_refused(&outcomes[*row]))?;
    let nothing_else = |row: &usize| !is_known(&outcomes[*row]) || is_refused(&outcomes[*row]);
    rows[first..].iter().all(nothing_else).then_some(first)
}

pub(super) fn is_refused(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Failed(_, failure) if failure.is_full_stream())
}

fn spares_smaller(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Failed(_, failure) if failure.spares_smaller())
}

/// It was answered. One without an answer says nothing: NATS went away, perhaps.
pub(super) fn is_known(outcome: &Outcome) -> bool {
    !matches!(outcome, Outcome::Unknown | Outcome::Behind)
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::delivery::decision::{Decision, Failure};

    fn refused(err_code: u64) -> Outcome {
        let failure =
            Failure::Refused { err_code, description: "maximum messages exceeded".into(), stream: None };
        Outcome::Failed(Decision::Wait, failure)
    }

    fn taken() -> Outcome {
        let now = Instant::now();
        Outcome::Stored {
            duplicate: false,
            stream: "S".into(),
            sequence: 1,
            sent_at: now,
            acknowledged_at: now,
        }
    }

    #[test]
    fn a_lane_is_held_up_where_nothing_is_taken_any_more() {
        let check = |outcomes: &[Outcome], expected| {
            let rows: Vec<usize> = (0..outcomes.len()).collect();
            assert_eq!(held_up(&rows, outcomes), expected, "{outcomes:?}");
        };
        check(&[refused(10077), Outcome::Behind, refused(10002), Outcome::Unknown], Some(0));
        check(&[taken(), taken(), refused(10077)], Some(2));
        check(&[refused(10077), taken()], None);
        check(&[refused(10077), refused(10054)], None);
        check(&[Outcome::Behind, refused(10158)], None);
        check(&[], None);
    }
}
