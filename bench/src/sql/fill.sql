-- Enqueue messages $1 to $2 of the backlog, as one transaction of a producer would. At most 10,000
-- at once.
-- $3: how many ordering keys share them, NULL for none. $4: size of a payload in bytes.
-- Keys are random UUIDs, the usual choice and the hardest for indexes; subjects are sixteen.
-- Locks: those of the INSERT in enqueue_all. Index: none is read.
SELECT count(*)
FROM {schema}.enqueue_all(
  ARRAY(SELECT gen_random_uuid()::text FROM generate_series($1::bigint, $2::bigint)),
  ARRAY(SELECT 'bench.orders.' || n % 16 FROM generate_series($1::bigint, $2::bigint) AS n),
  ARRAY(
    SELECT convert_to(rpad(format('{"order":%s,"note":"', n), $4::int - 2, 'x') || '"}', 'UTF8')
    FROM generate_series($1::bigint, $2::bigint) AS n
  ),
  NULL,
  ARRAY(SELECT 'customer-' || n % $3::bigint FROM generate_series($1::bigint, $2::bigint) AS n)
)
