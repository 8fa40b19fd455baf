-- How many items were reserved for each order, and how many of them were released. No parameters.
-- Index: none, the whole table is read. Locks: none.
SELECT m.order_id, coalesce(sum(m.count) FILTER (WHERE m.count > 0), 0)::bigint AS done,
       coalesce(-sum(m.count) FILTER (WHERE m.count < 0), 0)::bigint AS undone
FROM movement AS m
GROUP BY m.order_id
