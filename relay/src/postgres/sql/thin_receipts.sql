-- Delete receipts that are ten to seventy minutes old, but for the first of each minute. A cursor
-- that is moved back so far makes relays send the messages of up to one minute more again.
-- Index: receipt_at, receipt_pkey. Locking: the maintenance row is locked by claim_maintenance.sql.
DELETE FROM {schema}.receipt AS r
USING (
  SELECT
    o.lane,
    o.stream,
    o.number,
    row_number() OVER (PARTITION BY o.lane, o.stream, date_trunc('minute', o.at) ORDER BY o.number) AS place
  FROM {schema}.receipt AS o
  WHERE o.at < date_trunc('minute', clock_timestamp() - interval '10 minutes')
    AND o.at >= date_trunc('minute', clock_timestamp() - interval '70 minutes')
) AS t
WHERE t.place > 1 AND r.lane = t.lane AND r.stream = t.stream AND r.number = t.number
