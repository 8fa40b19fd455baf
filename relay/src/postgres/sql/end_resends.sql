-- Note which lanes have been sent again as far as they had been when they were rewound.
-- Index: loss_resending, cursor_pkey. Locking: its own rows.
UPDATE {schema}.loss AS l
SET ended_at = clock_timestamp()
FROM {schema}.lane_cursor AS c
WHERE l.resending_at IS NOT NULL
  AND l.ended_at IS NULL
  AND c.lane = l.lane
  AND c.target IS NULL
  AND c.high >= l.until_high
  AND (c.number > l.rewound_number AND c.snap::text <> l.snap::text OR c.snap::text = l.until_snap::text)
  AND pg_snapshot_xmax(c.snap) >= pg_snapshot_xmax(l.until_snap)
RETURNING l.lane
