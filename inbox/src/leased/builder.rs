//! Setting up leased mode: the settings of an inbox, and the lease.

use std::{sync::Arc, time::Duration};

use oncebox_claims::{database::Mode, leased::LeasedClaims, limits::IsolationLevel};

use super::Leased;
use crate::{Builder, InvalidSettings};

const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(3600);

/// Sets up a [`Leased`]; see [`Builder::leased`].
#[derive(Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct LeasedBuilder {
    inbox: Builder,
    lease: Duration,
}

impl Builder {
    /// Leased mode: for handlers with effects outside the database, see [`Leased`]. A claim holds
    /// for this time without being renewed, which happens every third of it: 100 milliseconds to 1
    /// hour. 8 seconds are a good value, so that the work of a process that died goes on within 10.
    /// A database that is away for longer than the lease cuts off the handlers at work; the next
    /// attempt finds out which calls they had made, as after a crash.
    ///
    /// A scope belongs to one mode: the first process that uses it says which, and one of the other
    /// mode is refused ([`Error::OtherMode`](crate::Error::OtherMode)), since the two would not see
    /// each other's claims. To change it, stop all processes of the scope, run `SELECT
    /// oncebox.change_inbox_mode('<scope>', 'lease')`, or `'transaction'`, and start them in the
    /// new mode. It refuses while claims under leases have not ended.
    ///
    /// [`Builder::handler_timeout`] limits a whole run, the provider's calls included, and
    /// [`Builder::attempts_max`] counts the claims of a key that were no snoozes.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use oncebox_inbox::{Inbox, InvalidSettings, Leased};
    ///
    /// fn charges(pool: deadpool_postgres::Pool) -> Result<Leased, InvalidSettings> {
    ///     Inbox::builder(pool)
    ///         .scope("payment-service:charge")
    ///         .single_tenant()
    ///         .handler_timeout(Duration::from_secs(300))
    ///         .leased(Duration::from_secs(20))
    ///         .build()
    /// }
    /// ```
    pub fn leased(self, lease: Duration) -> LeasedBuilder {
        LeasedBuilder { inbox: self, lease }
    }
}

impl LeasedBuilder {
    /// The inbox in leased mode, when every value can work.
    ///
    /// # Errors
    /// All mistakes at once.
    pub fn build(mut self) -> Result<Leased, InvalidSettings> {
        self.inbox.mode = Mode::Lease;
        let mut mistakes = Vec::new();
        if !(SHORTEST..=LONGEST).contains(&self.lease) {
            mistakes.push("lease is not 100 milliseconds to 1 hour".to_owned());
        }
        if self.inbox.is_shadow {
            mistakes.push(
                "shadow() is for handlers in a transaction: a copy must not call a provider again".to_owned(),
            );
        }
        if self.inbox.limits.isolation_level != IsolationLevel::ReadCommitted {
            mistakes.push(
                "isolation_level(..) is for handlers in a transaction: in leased mode they begin their own"
                    .to_owned(),
            );
        }
        match self.inbox.build() {
            Ok(inbox) if mistakes.is_empty() => {
                let claims = LeasedClaims::new(Arc::clone(&inbox.database), self.lease)
                    .recorded(inbox.shared.settings.recording.clone());
                Ok(Leased::new(inbox, Arc::new(claims)))
            }
            Ok(_) => Err(InvalidSettings(mistakes)),
            Err(InvalidSettings(more)) => {
                mistakes.extend(more);
                Err(InvalidSettings(mistakes))
            }
        }
    }
}
