-- Spread the next attempts of parked messages at random over the longest pause between two
-- attempts, 5 minutes, as they are long after the messages were parked. No parameters. Index: none
-- is read. Locking: no other session uses the rows yet.
UPDATE {schema}.parked
SET next_attempt_at = clock_timestamp() + random() * interval '5 minutes'
