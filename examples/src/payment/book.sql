-- Book a charge to the customer's account.
-- Parameters: $1 customer, $2 cents. Index: account_pkey.
-- Locks: the account's row, until the end of the transaction. The charges of one customer therefore
-- get their ids in the order in which they are committed.
INSERT INTO account (customer, charges, cents)
VALUES ($1, 1, $2)
ON CONFLICT (customer) DO UPDATE
SET charges = account.charges + 1, cents = account.cents + excluded.cents
