-- The inventory's own tables. Deliberately without UNIQUE (order_id): that nothing is reserved
-- twice is the work of the inbox and of the barrier, and a constraint here would hide it if they
-- failed.
CREATE TABLE IF NOT EXISTS stock (
  item text PRIMARY KEY,
  free integer NOT NULL CHECK (free >= 0)
);
CREATE TABLE IF NOT EXISTS movement (
  id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  order_id text NOT NULL,
  item     text NOT NULL REFERENCES stock (item),
  count    integer NOT NULL
);
CREATE INDEX IF NOT EXISTS movement_order_id ON movement (order_id);
COMMENT ON COLUMN movement.count IS 'Above zero what was reserved, below it what was released.';
