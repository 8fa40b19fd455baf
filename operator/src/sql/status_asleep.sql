-- The relays that sleep: their rows are seen in the future, when they wake at the latest, which is
-- within a day. And the name of the database, which is part of the subject that wakes them.
-- Index: none; a row per relay. Locking: none.
SELECT
  count(*) AS relays,
  min(r.seen_at) AS wakes_at,
  current_database()::text AS database
FROM {schema}.relay AS r
WHERE r.seen_at > clock_timestamp()
  AND r.seen_at < clock_timestamp() + interval '25 hours'
