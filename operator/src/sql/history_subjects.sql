-- The messages of each subject that streams stored between two times, the most first. Subject is
-- NULL for messages that relays counted together.
-- $1: since; $2: until; $3: subjects at most. Index: history_pkey. Locking: none.
SELECT nullif(c.subject, '') AS subject, least(greatest(sum(c.messages), 0), 9223372036854775807)::bigint AS messages
FROM {schema}.history AS h
CROSS JOIN LATERAL unnest(h.subjects, h.counts) AS c (subject, messages)
WHERE h.at >= $1::timestamptz AND h.at < $2::timestamptz
GROUP BY c.subject
ORDER BY sum(c.messages) DESC, c.subject
LIMIT $3
