-- The delayed message with a key, and those of the steps below it. $1: the key; $2: messages at
-- most.
-- Index: delayed_key_unique, inside the function. Locks: none.
SELECT d.key, d.subject, d.ordering_key, d.not_before, d.created_at
FROM {schema}.list_delayed($1, $2) AS d
