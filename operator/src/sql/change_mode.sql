-- Let a scope claim its keys in the other mode, and record it: 0007_leases.sql has the function.
-- $1: the scope; $2: mode; $3: operator; $4: note. Index: those of the function. Locking: the
-- scope's row.
SELECT {schema}.change_inbox_mode($1, $2, $3, $4)
