-- Expect messages with a subject in an inbox.
-- $1: the pattern; $2: the inbox; $3: seconds; $4: its database, NULL = this one; $5: whether the
-- inbox may be unknown; $6, $7: who, and why. Locking: the row of an earlier one for both.
SELECT {schema}.expect($1::text, $2::text, $3::float8, $4::text, $5::boolean, $6::text, $7::text)
