-- Enqueue $1 messages of $2 MiB that do not compress.
SELECT count({schema}.enqueue('large-' || n, 'bench.large', payload.bytes))
FROM (
  SELECT string_agg(sha256(int4send(part)), ''::bytea) AS bytes
  FROM generate_series(1, $2 * 32768) AS part
) AS payload
CROSS JOIN generate_series(1, $1) AS n
