-- See whether new messages get ids that stand too low: where the sequence stands, and how far it
-- must have come; no row when all is well. A sequence is read as it is now, the rows as of the
-- statement's snapshot: messages enqueued in between make no difference.
-- Index: cursor_pkey, message_pkey. Locking: none.
SELECT i.stood_at, i.needed
FROM {schema}.message_ids AS i
WHERE i.stood_at < i.needed
