-- How many items were sent for each order, and how many of them were called back. No parameters.
-- Index: none, the whole table is read. Locks: none.
SELECT p.order_id, coalesce(sum(p.count) FILTER (WHERE p.count > 0), 0)::bigint AS done,
       coalesce(-sum(p.count) FILTER (WHERE p.count < 0), 0)::bigint AS undone
FROM parcel AS p
GROUP BY p.order_id
