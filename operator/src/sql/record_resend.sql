-- Record that messages which a stream lost are sent again by hand.
-- $1: operator; $2: note; $3: how many; $4: the stream. Index: none. Locking: none.
SELECT {schema}.record_action('resend', $1, $2, $3, $4)
