-- The charges of each order, and the refunds of them. No parameters. Index: none, the whole table
-- is read. Locks: none.
SELECT p.order_id, coalesce(sum(p.cents) FILTER (WHERE p.cents > 0), 0)::bigint AS done,
       coalesce(-sum(p.cents) FILTER (WHERE p.cents < 0), 0)::bigint AS undone
FROM payment AS p
GROUP BY p.order_id
