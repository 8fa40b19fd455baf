-- Call an order's parcel back. Parameter: $1 order. Index: parcel_order_id. Locks: none; the
-- barrier holds the row of its action.
INSERT INTO parcel (order_id, item, count)
SELECT p.order_id, p.item, -p.count
FROM parcel AS p
WHERE p.order_id = $1 AND p.count > 0
