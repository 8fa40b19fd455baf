-- Shipping's own table. Deliberately without UNIQUE (order_id), as in the inventory.
CREATE TABLE IF NOT EXISTS parcel (
  id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  order_id text NOT NULL,
  item     text NOT NULL,
  count    integer NOT NULL
);
CREATE INDEX IF NOT EXISTS parcel_order_id ON parcel (order_id);
COMMENT ON COLUMN parcel.count IS 'Above zero what was sent, below it what was called back.';
