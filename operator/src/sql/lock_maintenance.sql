-- Wait for the maintenance row: no relay deletes messages until this transaction ends.
-- Index: maintenance_pkey. Locking: this row is locked before any lane; a transaction of a relay
-- locks either the row or lanes, never both, so there is no deadlock.
SELECT FROM {schema}.maintenance
FOR UPDATE
