//! The messages that operators have paused or throttled, in a pass.

use super::session::Session;
use crate::{
    delivery::{
        Message, Pauses,
        pause::{Tokens, Wanted},
    },
    error::StoreError,
};

impl Session {
    /// Marks the messages that are not to be sent now, and takes the tokens of the others.
    pub(crate) async fn mark_paused(
        &self,
        pauses: &Pauses,
        messages: &mut [Message],
    ) -> Result<(), StoreError> {
        if pauses.is_empty() {
            return Ok(());
        }
        let Wanted { places, kinds, values, rates, messages: count } = pauses.wanted(messages);
        let tokens = if places.is_empty() {
            Tokens::default()
        } else {
            let sql = &self.store.sql.take_tokens;
            let rows = self.query("take tokens", sql, &[&places, &kinds, &values, &rates, &count]).await?;
            rows.iter().map(|row| (row.get("place"), row.get("tokens"))).collect()
        };
        pauses.mark(messages, tokens);
        Ok(())
    }
}
