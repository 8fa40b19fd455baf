-- Let all lanes have moved that time ago, as far as a check of the streams is concerned. Their
-- receipts came before that.
UPDATE {schema}.cursor SET settled_at = clock_timestamp() - interval '{ago}';
UPDATE {schema}.receipt SET at = at - interval '1 hour';
