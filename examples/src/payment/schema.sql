-- The payment service's own tables, in its own database. Deliberately without UNIQUE (order_id):
-- that no order is charged twice is the inbox's work, and a constraint here would hide it if the
-- inbox failed.
CREATE TABLE IF NOT EXISTS account (
  customer integer PRIMARY KEY,
  charges  integer NOT NULL,
  cents    bigint NOT NULL
);
CREATE TABLE IF NOT EXISTS charge (
  id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  order_id bigint NOT NULL,
  customer integer NOT NULL REFERENCES account (customer),
  number   integer NOT NULL,
  cents    bigint NOT NULL,
  in_order boolean NOT NULL
);
CREATE INDEX IF NOT EXISTS charge_customer_number ON charge (customer, number);
COMMENT ON COLUMN charge.number IS 'The order''s number, counted per customer by the order service.';
COMMENT ON COLUMN charge.in_order IS 'Whether no later order of this customer had been charged before.';

-- The counts of each process of the service, for the demo's table.
CREATE TABLE IF NOT EXISTS process (
  name       text PRIMARY KEY,
  handled    bigint NOT NULL,
  replayed   bigint NOT NULL,
  updated_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
