-- Every order with its saga: its end, its data, and why it was undone. No parameters. Index: none,
-- the whole table is read. Locks: none.
SELECT s.business_id AS order_id, s.state, s.reason, (s.data ->> 'count')::bigint AS count,
       (s.data ->> 'cents')::bigint AS cents
FROM oncebox.saga AS s
