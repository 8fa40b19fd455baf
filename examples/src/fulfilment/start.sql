-- Start the saga of an order. $1: its type; $2: the order's id; $3: the order as JSON.
SELECT * FROM oncebox.start_saga($1, $2, $3::text::jsonb)
