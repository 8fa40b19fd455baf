-- Read where this outbox lives, as relays noted it, and the consequence in this database.
-- $1: the address by which this relay knows the database.
-- noted_us: of two databases the lower one is the senior, so the last one of which an operator has
-- said that the original is there. Until relays have served an adopted outbox (its address is
-- empty) it is the senior of none.
-- Times are microseconds; seen_us is how long ago a rival was seen, lasted_us for how long it was.
-- Index: home_pkey, outbox_pkey: a row each. Locking: none.
SELECT
  o.identity,
  h.verdict,
  h.system_identifier,
  h.database_oid,
  h.token,
  coalesce(h.noted_name, h.database_name) AS noted_name,
  coalesce(h.address, '') AS address,
  coalesce(h.address = $1::text, false) AS is_same_address,
  (1e6 * least(greatest(CASE
    WHEN h.verdict IS DISTINCT FROM 'here' OR h.address = '' THEN extract(epoch FROM clock_timestamp())
    ELSE coalesce(-extract(epoch FROM h.moved_at), extract(epoch FROM h.noted_at))
  END, -1e12), 1e12))::bigint AS noted_us,
  (extract(epoch FROM clock_timestamp()) * 1e6)::bigint AS now_us,
  h.rival,
  (1e6 * least(greatest(extract(epoch FROM clock_timestamp()) - extract(epoch FROM h.rival_seen_at), -1e12), 1e12))::bigint AS seen_us,
  (1e6 * least(greatest(extract(epoch FROM h.rival_seen_at) - extract(epoch FROM h.rival_since), -1e12), 1e12))::bigint AS lasted_us
FROM {schema}.home_here AS h
CROSS JOIN {schema}.outbox AS o
