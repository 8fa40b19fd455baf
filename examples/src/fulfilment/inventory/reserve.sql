-- Put a number of an item aside for an order, if there are enough.
-- Parameters: $1 order, $2 item, $3 count. Changes one row of movement, or none where there are
-- not.
-- Index: stock_pkey. Locks: the item's row, until the end of the transaction.
WITH taken AS (
  UPDATE stock AS s
  SET free = s.free - $3
  WHERE s.item = $2 AND s.free >= $3
  RETURNING s.item
)
INSERT INTO movement (order_id, item, count)
SELECT $1, t.item, $3
FROM taken AS t
