-- Settings of an operator's transaction: it waits for a lane as long as a relay that hangs may keep
-- it locked, and reads by indexes even if the statistics are wrong. No commit waits for a standby:
-- one that is gone would hang the command without a word. The audit has the name of the command.
SET LOCAL statement_timeout = '120s';
SET LOCAL lock_timeout = '75s';
SET LOCAL idle_in_transaction_session_timeout = '60s';
SET LOCAL synchronous_commit = local;
SET LOCAL enable_seqscan = off;
SET LOCAL enable_bitmapscan = off;
SET LOCAL row_security = off;
SET LOCAL jit = off;
SET LOCAL oncebox.command = '{command}'
