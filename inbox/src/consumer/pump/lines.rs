//! Messages that waited in the database for a dead letter: they are run like those that JetStream
//! delivers, one of each ordering key.

use std::time::Duration;

use oncebox_claims::{failure::text, records::Head};
use tokio::time::timeout;
use tracing::debug;

use super::Pump;
use crate::{
    Error, Received,
    consumer::{BehindDead, Order, held_message::HeldMessage, mode::Mode},
};

/// How long the look at stopped lines may take; the next look comes soon.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

impl<M: Mode> Pump<M> {
    /// Tells PostgreSQL whether messages wait for a dead letter. Called when the place in the
    /// stream is known: each message that died before is known to the database then.
    pub(super) async fn follow_lines(&self) -> Result<(), Error> {
        let inbox = self.mode.inbox();
        let behind_max = match (self.settings.order, self.settings.behind_dead) {
            (Order::Strict, BehindDead::Wait(most)) => Some(most),
            (Order::Strict, BehindDead::Overtake) | (Order::PerProcess, _) => None,
        };
        inbox.shared.lines.set_keeps(behind_max.is_some());
        if inbox.records.follow_lines(inbox.scope(), behind_max).await? {
            inbox.shared.lines.note_dead();
        }
        Ok(())
    }

    /// Takes messages of lines whose turn has come, as many as are handled at once.
    pub(super) async fn take_of_lines(&self) {
        let inbox = self.mode.inbox();
        let lines = &inbox.shared.lines;
        let Some(seen) = lines.stopped() else { return };
        let held = self.held.queue().messages().filter(|held| held.message.is_none()).count();
        let mut room = self.settings.concurrency.saturating_sub(held);
        let mut after = 0;
        while room > 0 {
            let head = inbox.records.next_in_line(inbox.scope(), &self.settings.stream, after);
            match timeout(ANSWER_WITHIN, head).await {
                Ok(Ok(Head::Due(due))) => {
                    after = due.place.id();
                    let Some((id, held)) = HeldMessage::in_line(Received::from(*due)) else { continue };
                    // One that is held already is refused. It has no place among those that the
                    // stream delivers: those wait for it in the database.
                    room -= usize::from(self.held.queue().push(id, None, held));
                }
                Ok(Ok(Head::None)) => return lines.note_free(seen),
                Ok(Ok(Head::Stopped)) | Err(_) => return,
                Ok(Err(error)) => {
                    debug!(scope = inbox.scope(), "stopped lines are looked at again soon: {}", text(&error));
                    return;
                }
            }
        }
    }
}
