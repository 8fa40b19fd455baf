-- Orders and their effects, of which a second one of an order would be counted. No parameters.
CREATE TABLE orders (id bigint PRIMARY KEY, cents bigint NOT NULL);
CREATE TABLE effect (order_id bigint NOT NULL, cents bigint NOT NULL)
