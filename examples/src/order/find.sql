-- The order that an earlier attempt of this request placed.
-- Parameter: $1 request key. Index: orders_request_key_key. Locks: none.
SELECT id, number
FROM orders
WHERE request_key = $1
