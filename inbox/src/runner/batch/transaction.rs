//! One transaction of a batch: claims, handlers after savepoints, commit.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use oncebox_claims::{
    Claim,
    database::Mode,
    failure::text,
    identity::Identity,
    stored::{Status, Stored},
    transactional::{Session, Wanted},
};
use oncebox_schema::Transaction;
use tokio::time::Instant;
use tracing::warn;

use super::round::{Lost, Part, Round, Savepoint};
use crate::{
    Error, Handler, Inbox, Received,
    runner::{attempt::Uncommitted, delivery::Delivery},
};

/// When a round takes no more messages: its rows stay locked, and its keys in flight, until it
/// ends.
const ROUND_LONG: Duration = Duration::from_millis(500);
/// The time that a round may take besides the handler's limit, with the inbox's own statements.
const MARGIN: Duration = Duration::from_secs(10);

impl Inbox {
    /// Runs these messages in one transaction, and returns the result of each. An error means that
    /// the transaction had no effect.
    pub(super) async fn round<H: Handler>(
        &self,
        handler: &H,
        deliveries: &[Delivery<&Received>],
    ) -> Result<Vec<Part<H::Reply>>, Lost> {
        let by_itself = Box::pin(self.begin_together(deliveries)).await.map_err(|error| Lost::new(&error))?;
        let asked = Instant::now();
        Box::pin(self.register(Mode::Transaction)).await.map_err(|error| Lost::new(&error))?;
        let mut transaction = self.database.begin().await.map_err(|error| Lost::new(&error))?;
        let parts = self.run_round(&mut transaction, handler, deliveries, &by_itself, asked).await;
        match &parts {
            Ok(_) => transaction.release(),
            Err(Lost { session: Some(session), .. }) => {
                // Without it, the messages of the round would be in flight for as long as the
                // statement takes.
                if let Err(error) = self.claims.end(transaction.into_object(), session).await {
                    warn!(
                        scope = self.shared.settings.scope,
                        "a statement of a handler still runs: {}",
                        text(&error)
                    );
                }
            }
            Err(Lost { session: None, .. }) => {
                // Its messages are run one by one, and must find their keys free.
                self.database.roll_back_and_chain(&mut transaction).await;
                transaction.close();
            }
        }
        parts
    }

    async fn run_round<H: Handler>(
        &self,
        transaction: &mut Transaction,
        handler: &H,
        deliveries: &[Delivery<&Received>],
        by_itself: &[bool],
        asked: Instant,
    ) -> Result<Vec<Part<H::Reply>>, Lost> {
        let end = Instant::now() + ROUND_LONG;
        let claimed = self.claim_round(transaction, deliveries, by_itself).await;
        let (session, claims) = claimed.map_err(|error| Lost::new(&error))?;
        self.shared.counters.claims.claim_time.observe(asked, claims.len());
        let won: Vec<bool> =
            (0..deliveries.len()).map(|index| matches!(claims.get(&index), Some(Claim::Won(_)))).collect();
        let part = |by_itself: &bool| if *by_itself { Part::ByItself } else { Part::NotRun };
        let mut round = Round {
            inbox: self,
            transaction,
            handler,
            deliveries,
            parts: by_itself.iter().map(part).collect(),
            savepoint: Savepoint::None,
            claimed: session.transaction(),
            session: Some(session),
            end,
        };
        if H::TAKES_SETS {
            let waits = self.shared.lines.keeps();
            round.run_set(&takeable(deliveries, &claims, waits)).await?;
        }
        for (index, delivery) in deliveries.iter().enumerate() {
            if index > 0 && Instant::now() >= end || round.has_conflict() {
                break;
            }
            if round.is_ended(index) || round.is_held_up(index) {
                continue;
            }
            match claims.get(&index) {
                Some(Claim::Won(_)) => round.run(index).await?,
                // A duplicate of a message of this round: the next round answers it from the
                // committed outcome.
                None => {}
                Some(Claim::Alone) => round.parts[index] = Part::ByItself,
                Some(known) => {
                    let (identity, received) = (&delivery.identity, delivery.received);
                    let answered = self.replay(round.transaction, identity, received, known.clone()).await;
                    round.parts[index] = match answered {
                        Ok(Uncommitted { verdict, write }) => Part::Verdict(verdict, write),
                        Err(error) => return Err(Lost::new(&error)),
                    };
                }
            }
        }
        round.commit(&won).await
    }

    /// Claims the keys of a round, each for the first message that has it, unless that one is to
    /// run by itself. The claims are named by the places of the messages; another message of a key
    /// that is won here has none.
    async fn claim_round(
        &self,
        transaction: &mut Transaction,
        deliveries: &[Delivery<&Received>],
        by_itself: &[bool],
    ) -> Result<(Session, HashMap<usize, Claim>), Error> {
        let leaders = leaders(deliveries);
        let places = 0..deliveries.len();
        let places: Vec<usize> =
            places.filter(|place| leaders[*place] == *place && !by_itself[*place]).collect();
        let wanted = |place: &usize| (&deliveries[*place].identity, deliveries[*place].received.id());
        let wanted: Vec<Wanted<'_>> = places.iter().map(wanted).collect();
        let within = self.database.limits().handler_timeout + ROUND_LONG + MARGIN;
        let claims = self.claims.claim_all(transaction, &self.shared.settings.scope, &wanted, within);
        let claims = self.database.answered("claim a batch", Box::pin(claims)).await.flatten();
        let (session, claims) = claims?;
        let of_leaders: HashMap<usize, Claim> = places.into_iter().zip(claims).collect();
        let mut claims = HashMap::new();
        for (index, delivery) in deliveries.iter().enumerate() {
            let claim = match of_leaders.get(&leaders[index]) {
                Some(Claim::Won(_)) if leaders[index] != index => continue,
                Some(claim) => claim.clone().for_other(&delivery.identity.fingerprint),
                None => continue,
            };
            self.shared.record_claim(delivery.received, &delivery.identity, Some(&claim));
            claims.insert(index, claim);
        }
        Ok((session, claims))
    }
}

/// Finds for each message the first message with the same tenant and key.
fn leaders(deliveries: &[Delivery<&Received>]) -> Vec<usize> {
    let mut first = HashMap::new();
    let name = |identity: &Identity| (identity.tenant.clone(), identity.key.as_str().to_owned());
    let places = deliveries.iter().enumerate();
    places.map(|(index, delivery)| *first.entry(name(&delivery.identity)).or_insert(index)).collect()
}

/// The messages whose keys were won and that nothing is in the way of, by their places. With strict
/// order a message `waits` for a dead letter.
fn takeable(deliveries: &[Delivery<&Received>], claims: &HashMap<usize, Claim>, waits: bool) -> Vec<usize> {
    let mut stopped = HashSet::new();
    let mut places = Vec::new();
    for (index, delivery) in deliveries.iter().enumerate() {
        let line = delivery.received.ordering_key();
        if line.is_some_and(|line| stopped.contains(line)) {
            continue;
        }
        match claims.get(&index) {
            Some(Claim::Won(_)) => places.push(index),
            Some(Claim::Copy(Stored { status: Status::Completed | Status::Rejected, .. })) => {}
            // A dead letter, or about to be one.
            Some(Claim::Copy(_) | Claim::Mismatch(_)) => stopped.extend(line.filter(|_| waits)),
            _ => stopped.extend(line),
        }
    }
    places
}
