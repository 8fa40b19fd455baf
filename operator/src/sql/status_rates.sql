-- How many messages were enqueued, and how many settled, since the marks of status_marks.sql; late
-- ones are left out.
-- $1: lanes; $2: where their cursors stood; $3: their newest messages; $4: when; $5: messages
--   counted of each kind, at most.
-- Index: cursor_pkey; message_pkey, the part of each lane between its marks. Locking: none.
SELECT
  (
    SELECT count(*)
    FROM (
      SELECT
      FROM unnest($1::smallint[], $3::bigint[]) AS s (lane, newest)
      CROSS JOIN LATERAL (
        SELECT m.id FROM {schema}.log AS m WHERE m.lane = s.lane AND m.id > s.newest ORDER BY m.id LIMIT $5
      ) AS m
      LIMIT $5
    ) AS n
  ) AS enqueued,
  (
    SELECT count(*)
    FROM (
      SELECT
      FROM unnest($1::smallint[], $2::bigint[]) AS s (lane, high)
      CROSS JOIN LATERAL (
        SELECT c.high FROM {schema}.lane_cursor AS c WHERE c.lane = s.lane OFFSET 0
      ) AS c
      CROSS JOIN LATERAL (
        SELECT m.id
        FROM {schema}.log AS m
        WHERE m.lane = s.lane AND m.id > s.high AND m.id <= c.high
        ORDER BY m.id
        LIMIT $5
      ) AS m
      LIMIT $5
    ) AS n
  ) AS settled,
  extract(epoch FROM clock_timestamp() - $4::timestamptz)::float8 AS seconds
