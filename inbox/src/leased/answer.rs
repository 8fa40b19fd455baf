//! The end of a claim whose outcome is known as bytes: the response of a request.

use tokio::time::timeout;

use super::{Lease, ending::END_MAX};
use crate::{
    Error,
    store::{Borrowed, Status, failed},
};

impl Lease {
    /// Replaces the claim by how it ended, in a transaction of its own; false when the lease is lost.
    pub(crate) async fn end(&self, status: Status, outcome: &[u8]) -> Result<bool, Error> {
        let (store, inner) = (self.store(), &self.store().inner);
        let mut borrowed = Borrowed::new(inner.connect().await?);
        let transaction = inner.begin(borrowed.object()).await?;
        let ending = async {
            if store.end(&transaction, self.holder(), status, Some(outcome)).await? {
                inner.commit(&transaction).await.map(|()| true)
            } else {
                Ok(false)
            }
        };
        let ended = match timeout(END_MAX, ending).await {
            Ok(ended) => ended.map_err(failed("end a claim"))?,
            Err(elapsed) => return Err(Error::Unavailable("end a claim", elapsed.into())),
        };
        drop(transaction);
        borrowed.give_back();
        Ok(ended)
    }
}
