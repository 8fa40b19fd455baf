-- Begin a saga of one's own. $1 business id, $2 data as JSON. Locks nothing that others want.
INSERT INTO hand_saga (business_id, data)
VALUES ($1, $2::text::jsonb)
RETURNING id
