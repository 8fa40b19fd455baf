-- Record that messages which a stream lost are sent again by hand.
-- $1: operator; $2: note; $3: how many; $4: the stream. Index: none. Locking: none.
INSERT INTO {schema}.audit (operator, note, action, messages, reason)
VALUES ($1, $2, 'resend', $3, $4)
