-- The ledger of an outbox in the schema oncebox, one JSON object a row: who it is, all messages
-- that were committed, with the transactions that committed them, and the cursors at the end.
-- Relays must rest, and retention must have deleted nothing.
-- Locking: none.
SELECT json_build_object('of', 'outbox', 'id', o.identity)::text
FROM oncebox.outbox AS o
UNION ALL
SELECT json_build_object(
  'of', 'message',
  'lane', m.lane,
  'id', m.id,
  'xact', m.xact::text,
  'ordering_key', m.ordering_key,
  'is_aside', EXISTS (SELECT FROM oncebox.parked AS p WHERE p.lane = m.lane AND p.id = m.id)
    OR EXISTS (SELECT FROM oncebox.discarded AS d WHERE d.lane = m.lane AND d.id = m.id)
)::text
FROM oncebox.message AS m
UNION ALL
SELECT json_build_object(
  'of', 'cursor',
  'lane', c.lane,
  'number', c.number,
  'floor', c.floor,
  'high', c.high,
  'snap', c.snap::text,
  'target', c.target::text,
  'after', c.after,
  'reset_until', c.reset_until
)::text
FROM oncebox.lane_cursor AS c
