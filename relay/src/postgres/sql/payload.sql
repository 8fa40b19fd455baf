-- Read a piece of a payload that is too large to be read with the others.
-- $1: lane; $2: id; $3: first byte, counted from 1; $4: bytes at most.
-- Index: message_pkey; ORDER BY as claim.sql explains. Locking: none; the lane is locked by
-- claim.sql, and message is append-only.
SELECT substring(m.payload FROM $3 FOR $4)
FROM {schema}.message AS m
WHERE m.lane = $1 AND m.id >= $2 AND m.id <= $2
ORDER BY m.id
LIMIT 1
