-- Book a charge, or below zero a refund. Parameters: $1 order, $2 cents.
-- Index: none. Locks: none.
INSERT INTO payment (order_id, cents) VALUES ($1, $2)
