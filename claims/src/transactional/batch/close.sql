-- Take away the guard of `open.sql`: the batch may be committed.
-- No parameters. Index: inbox_batch_pkey. Locking: none; the row has this transaction's own id.
DELETE FROM {schema}.inbox_batch
WHERE xact = pg_current_xact_id()
