-- Read who this outbox is: the first part of each Nats-Msg-Id.
-- Index: outbox_pkey; it has one row. Locking: none.
SELECT o.identity
FROM {schema}.outbox AS o
