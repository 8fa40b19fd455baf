-- Send a NOTIFY to ourselves, to learn whether LISTEN works here.
-- $1: channel; $2: payload. Index: none. Locking: NOTIFY's own, once at start.
SELECT pg_notify($1, $2)
