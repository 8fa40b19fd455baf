-- Claim the maintenance until the transaction ends; nothing returned means that another relay has
-- it.
-- Index: maintenance_pkey. Locking: SKIP LOCKED, so that relays share it without waiting; a replay
-- and `oncebox outbox prune` lock the same row, so that nothing is deleted that is just being asked
-- for.
SELECT FROM {schema}.maintenance
FOR UPDATE SKIP LOCKED
