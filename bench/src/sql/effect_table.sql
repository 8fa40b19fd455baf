-- The handler of the inbox bench writes to this table, as small as business tables come. No
-- parameters.
CREATE TABLE effect (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  customer bigint NOT NULL,
  cents bigint NOT NULL
)
