-- Mark the relay asleep, so that the next enqueue sends NOTIFY; writes only when the mark is not set.
-- Index: none. Locking: none; a sequence is updated in place, outside transactions.
SELECT setval('{schema}.relay_asleep', 1)
FROM {schema}.relay_asleep AS s
WHERE s.last_value = 0
