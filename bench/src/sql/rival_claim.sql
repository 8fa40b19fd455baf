-- Lock the oldest messages that no other session has locked. $1 how many at most.
-- Index: rival_outbox_pkey. Locking: SKIP LOCKED, so that copies of the loop share the work, and
--   reorder it.
SELECT id, key, subject, payload
FROM rival_outbox
ORDER BY id
LIMIT $1
FOR UPDATE SKIP LOCKED
