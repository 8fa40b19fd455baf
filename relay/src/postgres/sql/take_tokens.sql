-- Let messages of throttles pass: each costs a token, and tokens come at the rate of the throttle.
-- $1: places, which the answer names again; $2: kinds; $3: values; $4: rates; $5: messages, of
-- throttles that a claim has read. A throttle that is not in the answer lets none pass.
-- A throttle that was not used keeps the tokens of a quarter of a second, or one: more would be a
-- burst. A new one begins with none. Rows of throttles that ended a day ago go with the next new
-- one.
-- Index: throttle_pkey. Locking: the row until the pass ends; a relay that finds it locked sends
-- none, since the other one does. If the pass fails, its tokens are there again, and so are its
-- messages.
WITH wanted AS MATERIALIZED (
  SELECT w.place, w.kind, w.value, w.rate, w.messages
  FROM unnest($1::integer[], $2::text[], $3::text[], $4::float8[], $5::bigint[]) AS w (place, kind, value, rate, messages)
),
begun AS (
  INSERT INTO {schema}.throttle (kind, value)
  SELECT w.kind, w.value
  FROM wanted AS w
  WHERE NOT EXISTS (SELECT FROM {schema}.throttle AS t WHERE t.kind = w.kind AND t.value = w.value)
  ON CONFLICT DO NOTHING
  RETURNING kind
),
ended AS (
  DELETE FROM {schema}.throttle AS t
  WHERE t.counted_at < clock_timestamp() - interval '1 day'
    AND EXISTS (SELECT FROM begun)
    AND NOT EXISTS (SELECT FROM wanted AS w WHERE w.kind = t.kind AND w.value = t.value)
),
counted AS MATERIALIZED (
  SELECT
    w.place,
    w.messages,
    t.kind,
    t.value,
    least(
      greatest(w.rate / 4, 1),
      t.tokens + w.rate * greatest(extract(epoch FROM clock_timestamp()) - extract(epoch FROM t.counted_at), 0)::float8
    ) AS tokens
  FROM wanted AS w
  JOIN {schema}.throttle AS t ON t.kind = w.kind AND t.value = w.value
  FOR UPDATE OF t SKIP LOCKED
)
UPDATE {schema}.throttle AS t
SET tokens = c.tokens - least(floor(c.tokens), c.messages), counted_at = clock_timestamp()
FROM counted AS c
WHERE t.kind = c.kind AND t.value = c.value
RETURNING c.place, least(floor(c.tokens), c.messages)::bigint AS tokens
