-- A producer's statement with an outbox written by hand. $1 key, $2 subject, $3 payload.
INSERT INTO rival_outbox (key, subject, payload)
VALUES ($1::text, $2::text, $3::bytea)
