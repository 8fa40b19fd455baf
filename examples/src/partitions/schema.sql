-- Bookings; no constraint keeps them unique, which is the inbox's work.
CREATE TABLE posting (
  key text NOT NULL,
  cents bigint NOT NULL
)
