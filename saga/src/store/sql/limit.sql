-- Have PostgreSQL end this transaction when its process hangs between two statements: whoever is
-- suspended with sagas in its hands must not keep them.
-- $1: for how long it may, such as 5000ms. Index: none. Locking: none.
SELECT set_config('idle_in_transaction_session_timeout', $1, true)
