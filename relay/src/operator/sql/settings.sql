-- Settings of an operator's transaction: it waits for a lane as long as a relay that hangs may keep
-- it locked, and reads by indexes whatever the statistics say.
SET LOCAL statement_timeout = '120s';
SET LOCAL lock_timeout = '75s';
SET LOCAL idle_in_transaction_session_timeout = '60s';
SET LOCAL synchronous_commit = on;
SET LOCAL enable_seqscan = off;
SET LOCAL enable_bitmapscan = off;
SET LOCAL jit = off
