-- Settings of a transaction that only looks: it changes nothing, waits for no other for long, and
-- reads by indexes even if the statistics are wrong.
SET TRANSACTION READ ONLY;
SET LOCAL statement_timeout = '30s';
SET LOCAL lock_timeout = '5s';
SET LOCAL idle_in_transaction_session_timeout = '60s';
SET LOCAL enable_seqscan = off;
SET LOCAL enable_bitmapscan = off;
SET LOCAL row_security = off;
SET LOCAL jit = off
