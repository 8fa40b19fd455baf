-- Let others that make the same template wait for this session. $1 the template's hash. No index.
SELECT pg_advisory_lock($1)
