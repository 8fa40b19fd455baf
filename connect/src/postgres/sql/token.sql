-- Mark this session with its connection's token. $1: the token. Outside of a transaction, so that
-- the mark stays. Index: none. Locking: none.
SELECT set_config('oncebox.session', $1, false)
