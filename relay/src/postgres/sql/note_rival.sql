-- Note that a relay serves this outbox in another database.
-- $1: the address of that database. Index: home_pkey; a row. Locking: the row.
UPDATE {schema}.home AS h
SET rival = $1::text, rival_since = coalesce(h.rival_since, clock_timestamp()), rival_seen_at = clock_timestamp()
