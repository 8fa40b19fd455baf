#!/usr/bin/env bash
# PostgreSQL 18.4, an outbox trigger on a table that is partitioned by state
# Expected: UPDATE ... SET state = 'paid' fires AFTER UPDATE
# Seen: for a row that moves to another partition, AFTER DELETE and AFTER INSERT fire, and no row trigger says UPDATE
. "$(dirname "$0")/lib.sh"

postgres_start
seen=$(sql <<'SQL'
CREATE TABLE event (n int GENERATED ALWAYS AS IDENTITY, what text);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN INSERT INTO event (what) VALUES (tg_op); RETURN NULL; END $$;
CREATE TABLE orders (id int, state text, note text) PARTITION BY LIST (state);
CREATE TABLE open PARTITION OF orders FOR VALUES IN ('open');
CREATE TABLE paid PARTITION OF orders FOR VALUES IN ('paid');
CREATE TRIGGER outbox AFTER INSERT OR UPDATE OR DELETE ON orders FOR EACH ROW EXECUTE FUNCTION note();
INSERT INTO orders VALUES (1, 'open');
UPDATE orders SET note = 'x';
UPDATE orders SET state = 'paid';
SELECT string_agg(what, ' ' ORDER BY n) FROM event;
SQL
)
same "$seen" 'INSERT UPDATE DELETE INSERT' "consumers are told that the order was deleted, and then created"
