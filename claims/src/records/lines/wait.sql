-- Put a message into the line of the dead letter of its ordering key.
-- $1 scope; $2 key; $3 payload, empty for one that stays in the Object Store; $4 subject;
-- $5 headers as JSON; $6 tenant; $7 stream; $8 sequence in the stream; $9 when the stream stored
-- it, in microseconds since 1970.
-- Index: dead_letter_line, inbox_behind_line, inbox_pkey. Locking: the last row of the line FOR
-- SHARE, until this statement is committed: it does not end meanwhile.
SELECT {schema}.wait_in_line($1::text, $2::text, $3::bytea, $4::text, $5::text::jsonb, $6::text, $7::text, $8::bigint,
                             timestamptz 'epoch' + $9::bigint * interval '1 microsecond')
