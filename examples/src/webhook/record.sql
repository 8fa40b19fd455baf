-- Record a delivery. $1: its key; $2: push or paid; $3: the repository, or the cents. Index: none.
-- Locking: none.
INSERT INTO webhook_event (key, kind, what)
VALUES ($1, $2, $3)
