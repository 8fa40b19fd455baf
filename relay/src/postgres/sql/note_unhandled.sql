-- Note which messages are not in an inbox of another database in time.
-- $1: the expectation; $2, $3: the transactions that were looked at; $4, $5: lanes and ids.
-- Locking: the row of the expectation.
SELECT {schema}.note_unhandled($1::bigint, $2::text::xid8, $3::text::xid8, $4::smallint[], $5::bigint[])
