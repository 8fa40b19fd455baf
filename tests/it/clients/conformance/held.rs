//! A key that another process works on.

use oncebox_tests::TestEnv;
use tokio_postgres::Client;

use crate::clients::scenarios::{Column, Sent};

/// Holds the key of this message until [`FREE`].
pub(super) async fn locked(env: &TestEnv, column: Column, sent: &Sent) -> Client {
    let locked = env.pg().await;
    locked.batch_execute(LOCK).await.unwrap();
    if column == Column::Leased {
        locked.execute(LEASE, &[&sent.payload.to_string()]).await.unwrap();
    }
    locked
}

/// Holds the key of a message, as if another process worked on it.
const LOCK: &str = "SELECT pg_advisory_lock(oncebox.inbox_lock('conform:test', 'acme', 'locked'))";

/// The same for handlers under leases, which the lock does not keep out.
const LEASE: &str = "
INSERT INTO oncebox.inbox_claim (scope, tenant, key, fingerprint, owner, lease_until)
VALUES ('conform:test', 'acme', 'locked', oncebox.inbox_fingerprint(convert_to($1, 'UTF8')),
        gen_random_uuid(), 'infinity')";

/// Lets the key go.
pub(super) const FREE: &str = "SELECT pg_advisory_unlock_all();
DELETE FROM oncebox.inbox_claim WHERE lease_until = 'infinity'";
