-- Billing's own table. Deliberately without UNIQUE (order_id), as in the inventory.
CREATE TABLE IF NOT EXISTS payment (
  id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  order_id text NOT NULL,
  cents    bigint NOT NULL
);
COMMENT ON COLUMN payment.cents IS 'Above zero what was charged, below it what was refunded.';
