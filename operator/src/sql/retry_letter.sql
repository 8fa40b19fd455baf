-- Take a dead letter out, free its key, and record it; the caller publishes the returned message
-- and then commits. 0006_inbox.sql has the function.
-- $1: its id; $2: operator; $3: note. Index: dead_letter_pkey, inbox_pkey. Locking: both rows until
-- the end of the transaction. Another operator waits and then finds no letter; a consumer that gets
-- the message before the commit waits for the key, or takes it for in flight, see
-- `claims/src/transactional/dead.sql`.
SELECT outbox, key, subject, headers, payload, number
FROM {schema}.retry_letter($1, $2, $3)
