-- Send a parcel. Parameters: $1 order, $2 item, $3 count. Index: none. Locks: none.
INSERT INTO parcel (order_id, item, count) VALUES ($1, $2, $3)
