-- Take a message out of its line that has ended; the next one of the line is to run then.
-- $1 scope; $2 id; $3 since when it is in the line, in microseconds since 1970.
-- Index: inbox_behind_pkey, inbox_behind_line. Locking: its row; it waits for one that joins the
-- line.
SELECT {schema}.end_in_line($1::text, $2::bigint, $3::bigint)::text
