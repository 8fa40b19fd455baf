-- Losses of messages that streams had acknowledged, the newest first: grouped by stream and by
-- outcome. Losses found more than 30 days ago and sent again are left out.
-- $1: how many at most.
-- Index: none, of few rows. Locking: none.
SELECT
  l.stream,
  CASE
    WHEN l.resending_at IS NULL THEN 'reported'
    WHEN l.ended_at IS NULL THEN 'being sent again'
    ELSE 'sent again'
  END AS state,
  l.kind,
  count(*) AS lanes,
  min(l.sequence) AS sequence,
  max(l.lost_sequence) AS lost_sequence,
  min(l.found_at) AS found_at
FROM {schema}.loss AS l
WHERE l.ended_at IS NULL OR l.found_at > statement_timestamp() - interval '30 days'
GROUP BY 1, 2, 3, date_trunc('minute', l.found_at)
ORDER BY min(l.found_at) DESC, l.stream
LIMIT $1
