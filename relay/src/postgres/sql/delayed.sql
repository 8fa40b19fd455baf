-- How many delayed messages there are, counted to 10,000, and how late the first of them is.
-- Index: delayed_pkey; delayed_due, its first entry. Locking: none.
SELECT
  (SELECT count(*) FROM (SELECT d.id FROM {schema}.delayed AS d LIMIT 10000) AS n) AS messages,
  coalesce(greatest(extract(epoch FROM clock_timestamp()) - extract(epoch FROM first.not_before), 0), 0)::float8 AS late_seconds
FROM (SELECT) AS always
LEFT JOIN LATERAL (
  SELECT d.not_before
  FROM {schema}.delayed AS d
  ORDER BY d.not_before
  LIMIT 1
) AS first ON true
