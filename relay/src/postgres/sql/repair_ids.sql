-- Raise the ids of new messages, and set aside messages that were enqueued with ids too low:
-- 0004_operations.sql has the function and its locks. Returns NULL when nothing was to be done.
SELECT r.stood_at, r.raised_to, r.set_aside
FROM {schema}.repair_ids() AS r
