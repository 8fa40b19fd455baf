-- Each lane with the highest id that may be settled. Index: cursor_pkey. Locking: none.
SELECT c.lane, greatest(c.high, c.floor) AS high
FROM {schema}.lane_cursor AS c
ORDER BY c.lane
