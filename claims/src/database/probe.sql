-- Whether the database takes writes from us: a standby, or a former primary, does not.
-- No parameters. Index: none. Locking: none.
SELECT (current_setting('transaction_read_only') = 'off')::text
