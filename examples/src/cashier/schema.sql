-- The cashier's own table. Deliberately without UNIQUE (order_id): that no order is settled twice
-- is the inbox's work.
CREATE TABLE IF NOT EXISTS settlement (
  id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  order_id bigint NOT NULL,
  charge   bigint NOT NULL,
  payout   bigint NOT NULL
);
