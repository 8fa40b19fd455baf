-- Insert the effects of a set of messages.
-- $1 customers; $2 cents; arrays of one length.
INSERT INTO effect (customer, cents)
SELECT * FROM unnest($1::bigint[], $2::bigint[])
