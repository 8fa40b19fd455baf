-- Let relays serve an outbox that is a copy, or has moved.
-- $1: whether it has moved; $2: whether its backlog is discarded; $3: operator; $4: note.
-- Index: those of the function. Locking: all lanes, and to discard the log: see adopt().
SELECT a.identity, a.discarded
FROM {schema}.adopt($1, $2, $3, $4) AS a
