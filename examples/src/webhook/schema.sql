-- Deliveries; no constraint keeps them unique, which is the inbox's work.
CREATE TABLE webhook_event (
  key text NOT NULL,
  kind text NOT NULL,
  what text NOT NULL
)
