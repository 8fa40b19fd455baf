-- Forget messages that the stream has stored. $1 their ids. Index: rival_outbox_pkey. Locking:
-- locked by the claim.
DELETE FROM rival_outbox
WHERE id = ANY ($1)
