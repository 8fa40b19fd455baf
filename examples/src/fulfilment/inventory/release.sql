-- Give back an order's reservation: as much as the books say, not the message. Parameter: $1 order.
-- Index: movement_order_id, stock_pkey. Locks: the item's row, until the end of the transaction.
WITH reserved AS (
  SELECT m.item, m.count
  FROM movement AS m
  WHERE m.order_id = $1 AND m.count > 0
),
returned AS (
  UPDATE stock AS s
  SET free = s.free + r.count
  FROM reserved AS r
  WHERE s.item = r.item
)
INSERT INTO movement (order_id, item, count)
SELECT $1, r.item, -r.count
FROM reserved AS r
