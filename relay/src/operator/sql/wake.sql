-- Wake the relays when this transaction commits: polling would find it too, a little later.
-- $1: channel. Index: none. Locking: NOTIFY's own, once per batch.
SELECT pg_notify($1, '')
