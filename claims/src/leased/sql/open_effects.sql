-- Read which effects of a key may have happened, of this run and of earlier ones.
-- $1 scope; $2 tenant; $3 key.
-- Index: inbox_effect_pkey. Locking: none; only the claim's owner writes effects.
SELECT string_agg(format('"%s"', step), ', ' ORDER BY step)
FROM {schema}.inbox_effect
WHERE scope = $1::text
  AND tenant = $2::text
  AND key = $3::text
  AND state = 'started'
