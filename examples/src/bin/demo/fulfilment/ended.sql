-- How many sagas have ended, and how many wait for an operator.
-- No parameters. Index: none, the whole table is read. Locks: none.
SELECT count(*) FILTER (WHERE s.state = 'completed') AS shipped,
       count(*) FILTER (WHERE s.state = 'compensated') AS undone,
       count(*) FILTER (WHERE s.state IN ('stuck', 'quarantined')) AS stuck
FROM oncebox.saga AS s
