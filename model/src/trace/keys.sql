-- The keys that have ended in the schema oncebox, one JSON object a row, with the transactions that
-- ended them; and the sagas. Consumers must rest, and retention must have deleted nothing. `key` is
-- the number that recordings have for a key: see `lock` in claims/src/identity.rs.
-- Locking: none.
SELECT json_build_object(
  'of', 'key',
  'key', ('x' || left(encode(sha256(
    int8send(15) || 'oncebox inbox 1'
    || int8send(7) || 'oncebox'
    || int8send(octet_length(i.scope)) || convert_to(i.scope, 'UTF8')
    || int8send(octet_length(i.tenant)) || convert_to(i.tenant, 'UTF8')
    || int8send(octet_length(i.key)) || convert_to(i.key, 'UTF8')
  ), 'hex'), 16))::bit(64)::bigint,
  'scope', i.scope,
  'name', i.key,
  'status', i.status,
  'reply', CASE WHEN i.status <> 'dead' THEN left(encode(sha256(i.outcome), 'hex'), 16) END,
  'xmin', i.xmin::text::bigint
)::text
FROM oncebox.inbox AS i
UNION ALL
SELECT json_build_object(
  'of', 'saga',
  'saga', s.id,
  'name', s.key,
  'revision', s.revision,
  'direction', s.direction,
  'steps', (
    SELECT coalesce(json_object_agg(t.step, json_build_object(
      'state', t.state, 'attempt', t.attempt, 'undo_attempt', t.undo_attempt, 'in_doubt', t.in_doubt
    )), '{}')
    FROM oncebox.saga_step AS t
    WHERE t.saga_id = s.id
  )
)::text
FROM oncebox.saga AS s
