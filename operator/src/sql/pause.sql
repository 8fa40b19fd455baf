-- Pause messages, or throttle them, and record it; an earlier pause of the same goes.
-- $1: kind; $2: value; $3: messages a second, NULL = none; $4: patterns of subjects; $5: ordering
-- key; $6: operator; $7: note; $8: end, NULL = none; $9: seconds to the end, NULL = see $8. No row,
-- and nothing done, when the end is in the past. Index: pause_pkey. Locking: the earlier pause.
SELECT pause_ends_at AS ends_at
FROM {schema}.pause_delivery($1, $2, $3, $4, $5, $6, $7, $8, $9)
