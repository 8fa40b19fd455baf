-- Give this session a name of its own, so that it is not taken for a relay; returns the one that it
-- had, which relays with the same configuration have, and a name for the command in the audit.
-- Index: none. Locking: none.
WITH given AS MATERIALIZED (
  SELECT current_setting('application_name') AS name
)
SELECT
  g.name,
  gen_random_uuid()::text AS command,
  set_config(
    'application_name',
    CASE g.name WHEN 'oncebox relay' THEN 'oncebox operator' ELSE left(g.name, 54) || ' operator' END,
    false
  ) AS own_name
FROM given AS g
