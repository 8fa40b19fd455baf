-- The next message that is to run from a line, above this id; a row of NULLs when lines are stopped
-- and nothing is to run.
-- $1 scope; $2 stream; $3 id.
-- Index: inbox_behind_due. Locking: none: a process that takes the message as well finds its key in
-- flight, or settled.
SELECT id::text,
       since::text,
       subject,
       headers::text,
       payload,
       stream_sequence::text,
       (extract(epoch FROM stored_at) * 1000000)::bigint::text
FROM {schema}.next_in_line($1::text, $2::text, $3::bigint)
