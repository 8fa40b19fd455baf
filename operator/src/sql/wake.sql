-- Wake the relays when this transaction commits: polling would find it too, a little later.
-- Not into a queue that is more than half full, which would fail the command's COMMIT.
-- $1: channel. Index: none. Locking: NOTIFY's own, once per batch.
SELECT pg_notify($1, '')
WHERE pg_notification_queue_usage() < 0.5
