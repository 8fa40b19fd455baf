-- Whether a relay that asks is one of this database: it has just renewed its row. A dump has the
-- rows of its time, too; a relay that sleeps asks nothing, and its row is seen further in the
-- future. The clock may have been set back since the row was renewed.
-- $1: its id. Index: relay_pkey. Locking: none.
SELECT EXISTS (
  SELECT
  FROM {schema}.relay AS r
  WHERE r.id = $1::text::uuid AND r.seen_at > clock_timestamp() - interval '20 seconds'
    AND r.seen_at < clock_timestamp() + interval '20 seconds'
) AS knows
