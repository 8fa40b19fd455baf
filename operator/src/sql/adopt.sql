-- Let relays serve an outbox that is a copy, or has moved. Returns also where relays served it
-- within the last minute: the statement's snapshot is older than the function's change.
-- $1: whether it has moved; $2: whether its backlog is discarded; $3: operator; $4: note.
-- Index: those of the function. Locking: all lanes, and to discard the log: see adopt().
SELECT a.identity, a.backlog, a.digest, h.rival
FROM {schema}.adopt($1, $2, $3, $4) AS a
LEFT JOIN {schema}.home AS h ON h.rival_seen_at > clock_timestamp() - interval '1 minute'
