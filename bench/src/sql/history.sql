-- Messages of a turn that ended, put into its segment by the owner. $1: how many; $2: bytes of a
-- payload. Keys are random UUIDs, the usual choice and the hardest for indexes. {order}: empty, or
-- in their order, which fills the index of a segment that is only looked into faster.
-- Locks: those of the INSERT. Index: none is read.
INSERT INTO {schema}.message_{segment} (lane, key, subject, payload)
SELECT {schema}.lane_of(m.key), m.key, 'bench.history', convert_to(rpad('', $2::int, 'x'), 'UTF8')
FROM (
  SELECT gen_random_uuid()::text AS key
  FROM generate_series(1, $1::bigint)
  {order}
) AS m
