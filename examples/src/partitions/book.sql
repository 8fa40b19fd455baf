-- Book a posting. $1: its key; $2: the cents. Index: none. Locking: none.
INSERT INTO posting (key, cents)
VALUES ($1, $2)
