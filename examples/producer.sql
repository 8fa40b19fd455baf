-- A producer in plain SQL: an order and the message that asks for its payment, in one transaction.
--
--   psql "$DATABASE_URL" -v request_key=4711 -v customer=7 -v cents=995 -f producer.sql
--
-- The same steps as src/order.rs and producer.py: a message does not show which of the three sent
-- it.
\set ON_ERROR_STOP on
SET client_min_messages = warning;  -- the tables may be there already
\ir src/order/schema.sql

BEGIN;

-- The customer's row first: its lock decides the order which the ordering key keeps.
INSERT INTO customer (id)
VALUES (:customer)
ON CONFLICT (id) DO UPDATE SET id = excluded.id;

-- A retried request inserts nothing and finds its order below.
INSERT INTO orders (request_key, customer, number, cents)
SELECT :'request_key', :customer, coalesce(max(number), 0) + 1, :cents
FROM orders
WHERE customer = :customer
ON CONFLICT (request_key) DO NOTHING;

SELECT id AS order_id, number FROM orders WHERE request_key = :'request_key' \gset

-- The key is derived from the client's. The id is NULL when this very message is enqueued already;
-- one key for two different messages is an error (SQLSTATE OB001).
SELECT coalesce(oncebox.enqueue(
  key          => oncebox.step_key(oncebox.root_key(:'request_key'), 'process-payment'),
  subject      => 'orders.placed',
  payload      => convert_to(format('{"order":%s,"customer":%s,"number":%s,"cents":%s}',
                                    :order_id, :customer, :number, :cents), 'UTF8'),
  ordering_key => 'customer:' || :customer
)::text, 'enqueued already') AS message_id \gset

COMMIT;

\echo order :order_id, message :message_id
