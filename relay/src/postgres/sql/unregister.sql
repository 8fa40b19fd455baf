-- A relay has drained: its settings count no longer.
-- $1: its id. Index: relay_pkey. Locking: its own row.
DELETE FROM {schema}.relay AS r WHERE r.id = $1::text::uuid
