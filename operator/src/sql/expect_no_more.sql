-- End an expectation; no row when there was none.
-- $1: the pattern; $2: the inbox; $3, $4: who, and why. Locking: its row.
SELECT {schema}.expect_no_more($1::text, $2::text, $3::text, $4::text)
