//! What becomes of a handler's response: stored and committed, stored alone, or passed on.

use std::sync::Arc;

use axum::{
    body::{Body, Bytes},
    http::{HeaderName, Response, StatusCode, response},
};
use deadpool_postgres::Object;
use oncebox_claims::{
    Error,
    database::failed,
    failure::{Class, classify, text},
    identity::Identity,
    metrics::add,
    stored::Status,
    transactional::{Claim, Deferred, Expect},
};
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tracing::{debug, error, warn};

use crate::{
    claim::Open,
    gate::{Found, Pass},
    kept::Kept,
    layer::Shared,
    problem::Problem,
    work::{DATABASE_LIMIT, within},
};

/// Whose response it is.
pub(crate) struct Turn<'a> {
    pub(crate) scope: &'a str,
    pub(crate) identity: &'a Identity,
    pub(crate) pass: &'a Pass,
}

impl Turn<'_> {
    /// What a line of the log says of it.
    pub(crate) fn labels(&self) -> (&str, &str) {
        (self.scope, self.identity.key.as_str())
    }
}

/// What a response means for the claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Stored with the handler's writes.
    Commit(Status),
    /// Stored without them.
    Reject,
    /// Not stored: the next attempt runs the handler again.
    Release,
}

/// Statuses of the 4xx that are not stored, unless the layer is told others: what they say may have
/// changed by the next attempt.
pub(crate) const NOT_STORED: [u16; 6] = [401, 403, 408, 409, 425, 429];

fn ending(status: StatusCode, keeps_writes: bool, not_stored: &[u16]) -> Ending {
    match status.as_u16() {
        200..=399 => Ending::Commit(Status::Completed),
        status if not_stored.contains(&status) => Ending::Release,
        400..=499 if keeps_writes => Ending::Commit(Status::Rejected),
        400..=499 => Ending::Reject,
        _ => Ending::Release,
    }
}

/// A response, and its body where that is to be stored.
pub(crate) struct Called {
    pub(crate) parts: response::Parts,
    pub(crate) body: CalledBody,
}

pub(crate) enum CalledBody {
    Whole(Bytes),
    /// Too long to be stored, or of unknown length, or of a response that is not stored at all.
    Streamed(Body),
}

impl Called {
    pub(crate) fn kept(&self, listed: &[HeaderName]) -> Kept {
        let body = match &self.body {
            CalledBody::Whole(body) => Some(body.clone()),
            CalledBody::Streamed(_) => None,
        };
        Kept::of(&self.parts, listed, body)
    }

    pub(crate) fn respond(self) -> Response<Body> {
        let body = match self.body {
            CalledBody::Whole(body) => Body::from(body),
            CalledBody::Streamed(body) => body,
        };
        Response::from_parts(self.parts, body)
    }
}

impl Shared {
    /// What a response means for its claim.
    pub(crate) fn ending(&self, status: StatusCode, keeps_writes: bool) -> Ending {
        ending(status, keeps_writes, &self.settings.not_stored)
    }

    /// The handler's response, of which nothing is stored.
    pub(crate) fn release(&self, called: Called) -> Response<Body> {
        add(&self.counters.released);
        called.respond()
    }

    /// Stores the response with the handler's writes, and only then lets it go.
    pub(crate) async fn commit(
        &self,
        turn: &Turn<'_>,
        open: Open,
        status: Status,
        called: Called,
    ) -> Response<Body> {
        let kept = called.kept(&self.settings.kept_headers);
        let row = kept.encode();
        let settlement = Some((turn.identity, (status, Some(&row[..]))));
        let nothing = Deferred::default();
        let settled = (&nothing, settlement);
        let commit = self.transactional.commit_and_claim(open.transaction(), turn.scope, settled, None);
        let committed = timeout(DATABASE_LIMIT, commit).await;
        let (scope, key) = turn.labels();
        let error = match committed {
            Ok((Ok(()), _)) => {
                drop(open);
                self.tell(turn, kept);
                return called.respond();
            }
            Ok((Err(error), _)) => error,
            Err(elapsed) => {
                open.abandon();
                return self.unavailable(&Error::Unavailable("commit", elapsed.into()));
            }
        };
        let reason = match (classify(&error), error.code()) {
            (Class::Unavailable, _) => return self.unavailable(&Error::Unavailable("commit", error.into())),
            (Class::Conflict, _) => {
                debug!(scope, key, "no effect: conflict with another transaction");
                open.roll_back().await;
                return self.refuse(Problem::Unavailable);
            }
            (Class::Failed, Some(&SqlState::IN_FAILED_SQL_TRANSACTION)) => {
                "the handler went on after a statement had failed; the transaction was aborted".to_owned()
            }
            (Class::Failed, Some(&SqlState::NO_ACTIVE_SQL_TRANSACTION)) => {
                "the handler ended the transaction by itself; only the layer may".to_owned()
            }
            (Class::Failed, _) => text(&error),
        };
        error!(scope, key, "the response is not sent: {reason}");
        open.roll_back().await;
        self.refuse(Problem::HandlerFailed)
    }

    /// Undoes the handler's writes, and stores its no in a transaction of its own. Should that not work, the client
    /// gets its answer all the same: nothing was done, and the next attempt may find out again.
    pub(crate) async fn reject(&self, turn: &Turn<'_>, open: Open, called: Called) -> Response<Body> {
        let kept = called.kept(&self.settings.kept_headers);
        let Some(object) = open.roll_back().await else { return called.respond() };
        match within(self.record(object, turn, &kept)).await {
            Ok(Claim::Won) => self.tell(turn, kept),
            // Another process was faster, and what it has committed stands.
            Ok(Claim::Stored(stored)) => {
                let kept = stored.outcome.as_deref().and_then(Kept::decode);
                let found = Arc::new(Found { fingerprint: stored.fingerprint, kept });
                return self.replay(&found, turn.identity);
            }
            Ok(Claim::InFlight) => {}
            Err(error) => {
                let (scope, key) = turn.labels();
                warn!(scope, key, "the response is not stored: {}", text(&error));
            }
        }
        called.respond()
    }

    async fn record(&self, object: Object, turn: &Turn<'_>, kept: &Kept) -> Result<Claim, Error> {
        let open = Open::begin(&self.database, object).await?;
        let row = kept.encode();
        let settlement = (Status::Rejected, Some(&row[..]));
        let claim = self
            .transactional
            .claim(open.transaction(), turn.scope, turn.identity, None, Expect::Either, settlement)
            .await?;
        if matches!(claim, Some(Claim::Won)) {
            self.database.commit(open.transaction()).await.map_err(failed("commit"))?;
        }
        Ok(claim.unwrap_or(Claim::InFlight))
    }

    /// A response is committed: counts it, and lets those behind have it.
    pub(crate) fn tell(&self, turn: &Turn<'_>, kept: Kept) {
        add(&self.counters.handled);
        if kept.status.is_client_error() {
            add(&self.counters.rejected);
        }
        let fingerprint = turn.identity.fingerprint.to_vec();
        turn.pass.tell(Arc::new(Found { fingerprint, kept: Some(kept) }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// X62: redirections are successes; a client's mistake is stored; what may pass later is not.
    #[test]
    fn statuses_decide_what_is_stored() {
        let check = |status: u16, expected| {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(ending(status, false, &NOT_STORED), expected, "{status}");
        };
        for status in [200, 201, 204, 301, 303, 304] {
            check(status, Ending::Commit(Status::Completed));
        }
        for status in [400, 402, 404, 410, 422] {
            check(status, Ending::Reject);
            let kept = ending(StatusCode::from_u16(status).unwrap(), true, &NOT_STORED);
            assert_eq!(kept, Ending::Commit(Status::Rejected), "{status}");
        }
        for status in [101, 401, 403, 408, 409, 425, 429, 500, 502, 503, 599] {
            check(status, Ending::Release);
        }
        assert_eq!(ending(StatusCode::FORBIDDEN, false, &[404]), Ending::Reject, "it is a setting");
        assert_eq!(ending(StatusCode::NOT_FOUND, true, &[404]), Ending::Release);
    }
}
