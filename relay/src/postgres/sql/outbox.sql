-- Read who this outbox is, the first part of each Nats-Msg-Id, and how many lanes it has, which
-- never changes.
-- Index: outbox_pkey; it has one row. The lanes are few. Locking: none.
SELECT
  o.identity,
  (SELECT count(*) FROM {schema}.lane) AS lanes
FROM {schema}.outbox AS o
