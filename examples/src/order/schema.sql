-- The order service's own tables. The row of a customer serialises that customer's orders.
CREATE TABLE IF NOT EXISTS customer (
  id integer PRIMARY KEY
);
CREATE TABLE IF NOT EXISTS orders (
  id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  request_key text NOT NULL UNIQUE,
  customer    integer NOT NULL REFERENCES customer (id),
  number      integer NOT NULL,
  cents       bigint NOT NULL CHECK (cents > 0),
  UNIQUE (customer, number)
);
COMMENT ON COLUMN orders.request_key IS 'The client''s key: a retried request finds its order.';
COMMENT ON COLUMN orders.number IS 'Counts the orders of one customer, in the order of their commits.';
