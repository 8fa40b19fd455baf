-- Parked messages as they are long after they were parked: their next attempts lie anywhere within
-- the longest pause between two, 5 minutes. No parameters. Locks nothing that anybody wants yet; no
-- index is read.
UPDATE {schema}.parked
SET next_attempt_at = clock_timestamp() + random() * interval '5 minutes'
