-- Charge an order, and note whether a later order of this customer has been charged before.
-- Parameters: $1 order, $2 customer, $3 number, $4 cents. Returns the charge's id, and that note.
-- Index: charge_customer_number. Locks: only the new row; book.sql holds the account's row.
INSERT INTO charge (order_id, customer, number, cents, in_order)
SELECT $1, $2, $3, $4, NOT EXISTS (SELECT FROM charge AS c WHERE c.customer = $2 AND c.number > $3)
RETURNING id, in_order
