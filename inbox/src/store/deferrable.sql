-- Whether transactions are deferrable unless told otherwise. No parameters, no index, no locking.
SELECT current_setting('default_transaction_deferrable')
