-- Delete events that were applied, or need not be.
-- $1: ids. Index: saga_event_pkey. Locking: the rows; the rows of their sagas are locked already.
DELETE FROM {schema}.saga_event AS e
WHERE e.id = ANY ($1)
