-- For a queue that completes a job outside of its handler's transaction: its handler inserts ON
-- CONFLICT DO NOTHING. No parameters.
CREATE UNIQUE INDEX ON effect (order_id)
