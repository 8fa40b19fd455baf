-- The rows of a table in one order, without columns that are not compared. {table}: its name,
-- quoted.
-- $1 columns to leave out; $2 how many rows at most. No index, no locking.
SELECT compared.line
FROM (
  SELECT (to_jsonb(oncebox_row) - $1::text[])::text AS line
  FROM {table} AS oncebox_row
) AS compared
ORDER BY compared.line COLLATE "C"
LIMIT $2::bigint
