-- Check that the transaction can be committed; COMMIT by the driver follows without a wait for the
-- answer. The statement fails in a transaction that an error aborted, which COMMIT would answer
-- with a silent ROLLBACK, and outside of a transaction, which the handler may have ended by itself.
-- `commit.sql` does the same where another message follows. Here its AND CHAIN would leave an empty
-- transaction behind, and the ROLLBACK of the driver's transaction object would end it: a statement
-- more for each message.
-- No parameters, no index. Locking: none.
SAVEPOINT oncebox_commit
