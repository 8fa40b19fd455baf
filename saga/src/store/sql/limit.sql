-- Have PostgreSQL end this transaction if its process hangs between two statements: a suspended
-- process must not keep its sagas.
-- $1: for how long it may, such as 5000ms. Index: none. Locking: none.
SELECT set_config('idle_in_transaction_session_timeout', $1, true)
