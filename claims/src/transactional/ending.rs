//! The end of a transaction that has claimed a key.

use oncebox_schema::{Driver, Statement, Value};

use super::{
    Claimed, Deferred, Expect, Next, TransactionId, TransactionalClaims,
    claim::{claim_values, name_values},
    deferred::of_guard,
};
use crate::{
    Error,
    database::{TokioPostgres, failed_through},
    failure::CommitError,
    identity::Identity,
    stored::{COMPLETED, Settlement},
};

/// The rest of the commit besides the writes of the handler.
#[derive(Debug)]
pub struct Ending<'a, D: Driver = TokioPostgres> {
    /// The writes that the handler left to the commit.
    pub deferred: &'a Deferred<D>,
    /// How the key ended, when that is more than [`COMPLETED`].
    pub settlement: Option<(&'a Identity, Settlement<'a>)>,
}

/// The results of a commit, and of the claim after it.
#[derive(Debug)]
pub struct Committed<D: Driver = TokioPostgres> {
    /// Whether the transaction is committed.
    pub committed: Result<(), CommitError>,
    /// The claim, if one was made; it has an effect only if the transaction is committed.
    pub claimed: Option<Claimed<D>>,
}

impl<D: Driver> Committed<D> {
    fn not(error: CommitError) -> Self {
        Self { committed: Err(error), claimed: None }
    }
}

impl<D: Driver> TransactionalClaims<D> {
    /// Sends the writes that the handler left to the commit, stores how it ended, commits, and
    /// claims the next message's key in the transaction that follows: all in one round trip, with a
    /// driver that pipelines. When one of these statements fails, the transaction is aborted and
    /// the commit has no effect; then the claim after it has none either. A key that may be known
    /// is also looked up at once, so that a duplicate costs no round trip of its own.
    pub async fn commit_and_claim(
        &self,
        transaction: &mut D::Transaction,
        scope: &str,
        ending: Ending<'_, D>,
        next: Option<Next<'_>>,
    ) -> Committed<D> {
        // There the guard of these writes is awaited, and the commit must not overtake them.
        if self.database.is_pooled()
            && let Err(error) = ending.deferred.write(&self.database, transaction).await
        {
            return Committed::not(error);
        }
        let settling =
            ending.settlement.map(|(identity, settlement)| settle_values(scope, identity, settlement));
        let claiming = next.map(|next| {
            let looks = (next.expect == Expect::Either && D::PIPELINES)
                .then(|| self.look_values(scope, next.identity));
            (self.claim_sql(next.expect), claim_values(scope, next, COMPLETED), looks)
        });
        let writes = ending.deferred.take();
        let is_guarded = !writes.is_empty();
        let mut statements = Vec::with_capacity(writes.len() + 5);
        if is_guarded {
            statements.push(self.database.guard());
            statements.extend(writes.iter().map(Statement::Write));
        }
        statements.extend(settling.as_ref().map(|values| Statement::Query(&self.settle, values)));
        statements.push(self.database.commit_statement(next.is_some()));
        let until_committed = statements.len();
        if let Some((sql, values, looks)) = &claiming {
            statements.push(Statement::Query(sql, values));
            statements.extend(looks.as_ref().map(|values| Statement::Query(&self.stored, values)));
        }
        let mut answers = self.database.send(transaction, &statements).await.into_iter();
        for index in 0..until_committed {
            match answers.next() {
                Some(Ok(_)) => {}
                Some(Err(error)) if index == 0 && is_guarded => {
                    return Committed::not(of_guard::<D>(error));
                }
                Some(Err(error)) => return Committed::not(CommitError::through::<D>(error)),
                None => return Committed::not(CommitError::Lost("no answer to the commit".into())),
            }
        }
        if next.is_none() && D::PIPELINES {
            D::set_over(transaction);
        }
        Committed { committed: Ok(()), claimed: next.and_then(|_| Claimed::of(answers)) }
    }

    /// Whether the transaction `claimed`, which is over, has committed its claim although its
    /// handler failed. Asked in the transaction after it, or, where there is none, in another.
    ///
    /// # Errors
    /// PostgreSQL is away.
    pub async fn is_committed(
        &self,
        behind: Option<&mut D::Transaction>,
        scope: &str,
        identity: &Identity,
        claimed: TransactionId,
    ) -> Result<bool, Error> {
        const WHAT: &str = "look for a claim";
        let [scope, tenant, key] = name_values(scope, identity);
        let values = [scope, tenant, key, Value::Integer(Some(*claimed.as_i64()))];
        let row = match behind {
            Some(transaction) => {
                let asked = self.database.query(transaction, &self.committed, &values).await;
                asked.map_err(failed_through::<D>(WHAT))?
            }
            None => self.database.alone(WHAT, &self.committed, &values).await?,
        };
        Ok(row.is_some_and(|row| row.is_true(0)))
    }

    /// Takes back a claim that its handler has committed, in the transaction that gives the message
    /// up.
    ///
    /// # Errors
    /// PostgreSQL is away.
    pub async fn disown(
        &self,
        transaction: &mut D::Transaction,
        scope: &str,
        identity: &Identity,
        claimed: TransactionId,
    ) -> Result<(), Error> {
        let [scope, tenant, key] = name_values(scope, identity);
        let values = [scope, tenant, key, Value::Integer(Some(*claimed.as_i64()))];
        let disowned = self.database.query(transaction, &self.disown, &values).await;
        disowned.map(drop).map_err(failed_through::<D>("take back a claim"))
    }
}

fn settle_values<'a>(
    scope: &'a str,
    identity: &'a Identity,
    Settlement { status, outcome }: Settlement<'a>,
) -> [Value<'a>; 5] {
    let [scope, tenant, key] = name_values(scope, identity);
    [scope, tenant, key, Value::Text(Some(status.as_str())), Value::Bytes(outcome)]
}
