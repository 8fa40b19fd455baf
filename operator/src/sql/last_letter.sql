-- The newest dead letter of an inbox. No parameters. Index: dead_letter_pkey. Locking: none.
SELECT coalesce(max(id), 0)
FROM {schema}.dead_letter
