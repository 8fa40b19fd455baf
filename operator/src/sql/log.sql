-- The table of the log that may hold messages that are due: of a segment, if that alone is live,
-- else the view of all.
-- Locking: none.
SELECT CASE
    WHEN count(*) FILTER (WHERE NOT s.is_live OR s.number = p.turn % 8) = 8 THEN 'message_' || p.turn % 8
    ELSE 'log'
  END AS log
FROM (SELECT pg_sequence_last_value('{schema}.turn') AS turn OFFSET 0) AS p
CROSS JOIN {schema}.segment AS s
GROUP BY p.turn
