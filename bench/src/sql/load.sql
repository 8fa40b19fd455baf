-- Every message of the backlog, but none that is parked, as the relay must publish it, in id order,
-- for the reference to publish. No parameters. Reads the whole table once, outside every
-- measurement. Takes no locks.
SELECT m.subject, m.payload, m.key, m.id::text, m.ordering_key,
       to_char(m.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') AS time
FROM {schema}.message AS m
WHERE NOT EXISTS (SELECT FROM {schema}.parked AS p WHERE p.lane = m.lane AND p.id = m.id)
ORDER BY m.id
