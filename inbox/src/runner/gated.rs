//! Messages that come through a gate.
//!
//! ```text
//! gate ──another copy──▶ stored? ──no─▶ in flight
//!   │                       │
//!   │ open, or away         ▼ yes
//!   └──────────────────▶ begin, claim, ...: as without a gate
//! ```

use crate::{Error, Gate, Handler, Inbox, Received, Source, Verdict, gate::Entry, source::OneMessage};
use oncebox_schema::Driver;

impl<D: Driver> Inbox<D> {
    /// Like `run_each`, but each message has to come through the gate first, so that none can be
    /// claimed after the commit of another.
    pub(super) async fn run_gated<H: Handler<D>, S: Source<H::Reply>>(
        &self,
        gate: &Gate,
        handler: &H,
        source: &mut S,
    ) {
        while let Some(received) = source.next() {
            let result = self.through(gate, handler, &received).await;
            source.ended(received, result);
        }
    }

    async fn through<H: Handler<D>>(
        &self,
        gate: &Gate,
        handler: &H,
        received: &Received,
    ) -> Result<Verdict<H::Reply>, Error> {
        // A message without an identity becomes a dead letter.
        let Ok(identity) = self.identify(received) else { return self.inside(handler, received).await };
        match gate.enter(identity.lock).await {
            Entry::Away => self.inside(handler, received).await,
            Entry::Busy => {
                // The process that closed the gate may have died after its commit.
                let stored = self.claims.peek(self.scope(), &identity).await?;
                if stored.is_some() {
                    self.duplicate_hint.note_duplicate();
                    return self.inside(handler, received).await;
                }
                let verdict = Verdict::InFlight;
                self.count(&verdict, received, &identity);
                Ok(verdict)
            }
            Entry::Open(permit) => {
                let result = tokio::select! {
                    result = self.inside(handler, received) => result,
                    never = gate.hold(&permit) => match never {},
                };
                // Its failure changes nothing that is committed.
                gate.leave(permit).await;
                result
            }
        }
    }

    async fn inside<H: Handler<D>>(
        &self,
        handler: &H,
        received: &Received,
    ) -> Result<Verdict<H::Reply>, Error> {
        let mut one = OneMessage { received: Some(received), result: None };
        // Boxed: the whole run, which is large, beside the gate's own future.
        Box::pin(self.run_ungated(handler, &mut one)).await;
        one.result.expect("run_ungated reports every message that it took")
    }
}
