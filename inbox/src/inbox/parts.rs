//! What leased mode shares with the inbox.

use std::sync::Arc;

use deadpool_postgres::Transaction;
use oncebox_claims::{
    database::{Borrowed, Database, failed},
    identity::Identity,
    stored::Stored,
};
use serde::de::DeserializeOwned;

use super::{
    Inbox, RetryPolicy,
    turn::{Answered, MISMATCH, Write},
};
use crate::{Error, Received, Verdict, counts::Counters};

impl Inbox {
    pub(crate) fn retries(&self) -> &RetryPolicy {
        &self.settings.retries
    }

    pub(crate) fn shared_database(&self) -> Arc<Database> {
        Arc::clone(&self.database)
    }

    pub(crate) fn shared_counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    pub(crate) fn identity_of(&self, received: &Received) -> Result<Identity, String> {
        self.identify(received)
    }

    /// A message without an identity becomes a dead letter.
    pub(crate) async fn bury_nameless<R: DeserializeOwned>(
        &self,
        received: &Received,
        reason: String,
    ) -> Result<Verdict<R>, Error> {
        self.bury(None, received, reason).await
    }

    /// Answers a duplicate from the stored row; `None` stands for a row of another payload that is not there yet.
    pub(crate) async fn answer_from<R: DeserializeOwned>(
        &self,
        identity: &Identity,
        received: &Received,
        stored: Option<Stored>,
    ) -> Result<Verdict<R>, Error> {
        let mut borrowed = Borrowed::new(self.database.connect().await?);
        let transaction = self.database.begin(borrowed.object()).await?;
        let answering = async {
            let Answered { verdict, write } = match stored {
                Some(stored) => self.replay(&transaction, identity, received, stored).await?,
                None => self.refuse(&transaction, identity, received).await?,
            };
            if !matches!(write, Write::Nothing) {
                self.database.commit(&transaction).await.map_err(failed("commit a dead letter"))?;
            }
            Ok(verdict)
        };
        let verdict = self.database.answered("answer a duplicate", answering).await.flatten()?;
        drop(transaction);
        borrowed.give_back();
        self.count(&verdict, received, identity);
        Ok(verdict)
    }

    async fn refuse<R>(
        &self,
        transaction: &Transaction<'_>,
        identity: &Identity,
        received: &Received,
    ) -> Result<Answered<R>, Error> {
        let owner = (identity.tenant.as_str(), Some(identity.key.as_str()));
        self.records.dead_letter(transaction, &self.settings.scope, owner, received, MISMATCH).await?;
        Ok(Answered { verdict: Verdict::Mismatch, write: Write::Complete })
    }

    pub(crate) fn count_verdict<R>(&self, verdict: &Verdict<R>, received: &Received, identity: &Identity) {
        self.count(verdict, received, identity);
    }
}
