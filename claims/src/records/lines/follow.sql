-- Say how many messages may wait for a dead letter of their ordering key, and learn whether any
-- line of the scope is stopped.
-- $1 scope; $2 the count, or NULL: they overtake it.
-- Index: inbox_scope_pkey, dead_letter_line, inbox_behind_line. Locking: the scope's row, for this
-- statement.
SELECT {schema}.follow_lines($1::text, $2::bigint::integer)::text
