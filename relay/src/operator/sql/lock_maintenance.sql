-- Wait for the maintenance row: no relay deletes messages until this transaction ends.
-- Index: maintenance_pkey. Locking: taken before any lane; relays take one of the two only, so
--   nobody waits in a circle.
SELECT FROM {schema}.maintenance
FOR UPDATE
