-- End the session that a batch was given up in, because a statement of a handler goes on in it; its
-- locks go with it.
-- $1 process id; $2 transaction id: the process may have ended already, and its id may be
-- another's by now.
-- Index: none; a view of as many rows as there are sessions. Locking: none. A role may end its own
-- sessions.
SELECT pg_terminate_backend(pid, 1000)
FROM pg_stat_activity
WHERE pid = $1::integer
  AND backend_xid = $2::bigint::text::xid8::xid
