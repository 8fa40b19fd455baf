-- Forget how often a key's messages were tried, if the key has ended. This follows the commit in a
-- statement of its own: the handler may have left its transaction to a role without rights here.
-- $1 scope; $2 tenant; $3 key.
-- Index and locking: see the function, in `schema/migrations/0015_batches.sql`.
SELECT {schema}.forget_attempts($1::text, $3::text, $2::text)::text
