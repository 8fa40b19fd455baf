-- Sabotage: the first and the last charge of a customer change places. No parameters.
-- Index: charge_pkey, charge_customer_number. Locks: the two rows.
WITH chosen AS (
  SELECT min(id) AS first, max(id) AS last
  FROM charge
  GROUP BY customer
  HAVING count(*) > 1
  LIMIT 1
)
UPDATE charge AS c
SET order_id = other.order_id, number = other.number, cents = other.cents
FROM chosen, charge AS other
WHERE (c.id = chosen.first AND other.id = chosen.last) OR (c.id = chosen.last AND other.id = chosen.first)
