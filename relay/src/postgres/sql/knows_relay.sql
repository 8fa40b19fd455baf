-- Whether a relay has written its row into this database.
-- $1: its id. Index: relay_pkey. Locking: none.
SELECT EXISTS (SELECT FROM {schema}.relay AS r WHERE r.id = $1::text::uuid) AS knows
