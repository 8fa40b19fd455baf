-- What waits for the same is found in the order of its due times.
-- Beforehand: parked_waits_for ON parked
CREATE INDEX CONCURRENTLY parked_waits_for ON {schema}.parked (lane, waits_for, next_attempt_at)
  WHERE waits_for IS NOT NULL;
-- Then:
COMMENT ON COLUMN {schema}.parked.waits_for IS 'What refuses the message with others: stream NAME or subject NAME. A few of them have the next due times; all others have one that is hours away, and are tried as soon as one of those is stored.';
