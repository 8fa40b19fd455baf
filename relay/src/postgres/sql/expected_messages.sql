-- The messages that must be in an inbox of another database.
-- $1: the expectation; $2, $3: the transactions, from the first up to below the second.
-- Index: message_lane_xact_id of each segment, unhandled_pkey. Locking: none.
SELECT m.lane, m.id, m.key
FROM {schema}.expected_messages($1::bigint, $2::text::xid8, $3::text::xid8) AS m
