-- Record a message that is given up, whole, but for a payload that stays in the Object Store.
-- $1 scope; $2 tenant; $3 key or NULL; $4 subject; $5 headers as JSON; $6 payload; $7 stream or
-- NULL; $8 sequence in the stream or NULL; $9 when the stream stored it, in microseconds
-- since 1970, or NULL; $10 deliveries;
-- $11 reason; $12 fingerprint of such a payload, else NULL.
-- Index: dead_letter_once. The stream's time is part of it, because a recreated stream counts from
-- 1 again.
-- Locking: concurrent copies of one message wait for the first on the index; then they do nothing.
INSERT INTO {schema}.dead_letter
  (scope, tenant, key, subject, headers, payload, stream, stream_sequence, stored_at, deliveries, reason, fingerprint)
VALUES ($1::text, $2::text, $3::text, $4::text, $5::text::jsonb, $6::bytea, $7::text, $8::bigint,
        timestamptz 'epoch' + $9::bigint * interval '1 microsecond', $10::bigint, $11::text, $12::bytea)
ON CONFLICT ON CONSTRAINT dead_letter_once DO NOTHING
