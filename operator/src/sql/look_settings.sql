-- Settings of a page's transaction, beyond those of a status: each statement is given up early.
SET LOCAL statement_timeout = '5s';
SET LOCAL lock_timeout = '2s'
