-- Abort a transaction in which a saga was begun whose command was sent before. No parameters; it is
-- always an error. Index: none. Locking: none.
DO $$
BEGIN
  RAISE EXCEPTION 'a saga cannot start, since a command of it was sent before: roll the transaction back';
END $$
