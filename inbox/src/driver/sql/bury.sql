-- Give a message up, after its rollback, and record it as a dead letter.
-- $1 scope; $2 key or NULL; $3 payload; $4 reason; $5 subject; $6 headers as JSON; $7 tenant; $8
-- the outbox's row or NULL; $9 stream or NULL; $10 sequence in the stream or NULL; $11 when the
-- stream stored it, in microseconds since 1970, or NULL; $12 deliveries; $13 id of the transaction
-- that has committed its claim although its handler failed, or NULL.
-- Index: inbox_pkey, dead_letter_once, inside the function. Locking: the key's advisory lock, not
-- waited for, until the transaction ends, which is about to commit.
SELECT {schema}.bury(
  $1::text, $2::text, $3::bytea, $4::text, $5::text, $6::text::jsonb, $7::text, $8::bigint, $9::text, $10::bigint,
  timestamptz 'epoch' + $11::bigint * interval '1 microsecond', $12::bigint,
  $13::bigint::text::xid8
)
