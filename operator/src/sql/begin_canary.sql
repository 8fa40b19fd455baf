-- Begin a canary, and record it: 0026_canary.sql has the function.
-- $1: letter or message; $2: lanes, of messages; $3: ids; $4: seconds until a verdict;
-- $5: operator; $6: note. Index: dead_letter_pkey, parked_pkey. Locking: none: a step looks at its
-- row again.
SELECT {schema}.begin_canary($1, $2, $3, $4, $5, $6)
