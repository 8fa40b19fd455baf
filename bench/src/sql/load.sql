-- Read the messages that the reference publishes: the backlog without parked messages, in the form
-- in which the relay publishes it, ordered by id. No parameters. Reads the whole table once, while
-- nothing is measured. Takes no locks.
SELECT m.subject, m.payload, m.key, m.id::text, m.ordering_key,
       to_char(m.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') AS time
FROM {schema}.message AS m
WHERE NOT EXISTS (SELECT FROM {schema}.parked AS p WHERE p.lane = m.lane AND p.id = m.id)
ORDER BY m.id
