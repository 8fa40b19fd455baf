-- What the handler of the inbox bench writes to: a business table as small as they come. No
-- parameters.
CREATE TABLE effect (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  customer bigint NOT NULL,
  cents bigint NOT NULL
)
