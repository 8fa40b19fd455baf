-- Mark this session as that of one connection. $1: its token. Outside of a transaction, so that the
-- mark stays. Index: none. Locking: none.
SELECT set_config('oncebox.session', $1, false)
