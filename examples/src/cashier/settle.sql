-- Book that an order is charged and paid out.
INSERT INTO settlement (order_id, charge, payout) VALUES ($1, $2, $3)
