-- How far the payment service is. No parameters. Index: charge_pkey. Locks: none.
SELECT
  (SELECT count(*) FROM charge) AS charges,
  (SELECT coalesce(sum(replayed), 0)::bigint FROM process) AS replayed
