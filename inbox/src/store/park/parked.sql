-- Read which deliveries of a message were no attempts.
-- $1 scope; $2 tenant; $3 key; $4 message.
-- Index: inbox_park_pkey.
-- Locking: none. Another process that parks the same copy at this moment has had a later delivery of it.
SELECT delivery,
       attempts
FROM {schema}.inbox_park
WHERE scope = $1::text
  AND tenant = $2::text
  AND key = $3::text
  AND message = $4::text
