-- Cancel a delayed message in the caller's transaction. $1: its key. Returns whether it was
-- delayed, as text.
-- Index: delayed_key_unique, message_N_pkey, inside the function. Locks: the message; waits for a
-- relay that is moving it, which takes milliseconds.
SELECT {schema}.cancel_delayed($1::text)::text
