-- Every order with its saga: its end, its data, and why it was undone. No parameters. Index: none,
-- the whole table is read. Locks: none. A saga of a file has the data of its start below `data`.
SELECT s.business_id AS order_id, s.state, s.reason, (coalesce(s.data -> 'data', s.data) ->> 'count')::bigint AS count,
       (coalesce(s.data -> 'data', s.data) ->> 'cents')::bigint AS cents
FROM oncebox.saga AS s
