-- How far the newest message is ahead of every cursor, in ids: about as many are due, if they are
-- many.
-- Index: cursor_pkey, message_pkey. Locking: none.
SELECT i.needed - (SELECT coalesce(max(c.high), 0) FROM {schema}.lane_cursor AS c) AS messages
FROM {schema}.message_ids AS i
