-- Read who this outbox is, the first part of each Nats-Msg-Id, how many lanes it has, which never
-- changes, and an id for the relay that asks.
-- Index: outbox_pkey; it has one row. The lanes are few. Locking: none.
SELECT
  o.identity,
  (SELECT count(*) FROM {schema}.lane) AS lanes,
  gen_random_uuid()::text AS relay
FROM {schema}.outbox AS o
