#!/usr/bin/env bash
# PostgreSQL 18.4, an outbox trigger BEFORE INSERT and INSERT ... ON CONFLICT DO NOTHING
# Expected: no row, no event
# Seen: the trigger runs before the conflict is found: its event is stored and commits, though the row was skipped
. "$(dirname "$0")/lib.sh"

postgres_start
seen=$(sql <<'SQL'
CREATE TABLE event (id int);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN INSERT INTO event VALUES (new.id); RETURN new; END $$;
CREATE TABLE orders (id int PRIMARY KEY);
CREATE TRIGGER outbox BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION note();
INSERT INTO orders VALUES (1);
INSERT INTO orders VALUES (1) ON CONFLICT DO NOTHING;
SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM event);
SQL
)
same "$seen" '1|2' "one order, two events"
