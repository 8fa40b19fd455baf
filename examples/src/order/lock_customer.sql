-- Take the customer's row until the end of the transaction, and make it if there is none yet.
-- Parameter: $1 customer. Index: customer_pkey. Locks: this row. So this transaction enqueues and
-- commits its messages for the customer after those of earlier holders: that is the order which the
-- ordering key keeps.
INSERT INTO customer (id)
VALUES ($1)
ON CONFLICT (id) DO UPDATE SET id = excluded.id
