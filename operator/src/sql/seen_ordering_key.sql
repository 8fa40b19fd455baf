-- Whether a message with this ordering key is set aside, or among the newest of its lane.
-- $1: the ordering key; $2: messages to look at, at most. Index: parked_ordering_key, message_pkey.
-- Locking: none.
SELECT EXISTS (
  SELECT FROM {schema}.parked AS p WHERE p.lane = {schema}.lane_of($1::text) AND p.ordering_key = $1::text
) OR EXISTS (
  SELECT
  FROM (
    SELECT m.ordering_key
    FROM {schema}.log AS m
    WHERE m.lane = {schema}.lane_of($1::text)
    ORDER BY m.id DESC
    LIMIT $2
  ) AS m
  WHERE m.ordering_key = $1::text
) AS is_seen
