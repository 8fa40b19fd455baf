-- Rows that an operator's SQL could leave in the tables of the outbox: of each column a value that
-- no program writes, unless the table refuses it. A copy of a row with some values changed, a new
-- row, or a row that is changed. All choices follow from setseed(); statements that a table has
-- taken are returned as executed.

-- Some value of this type, as a literal; literals of the table's checks are among the texts.
CREATE FUNCTION pg_temp.any_value(owner regclass, type text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  texts text[] := ARRAY['', ' ', 'x', E'a\nb\t\x1b[31m', '%s {} $1', 'null', '-1', repeat('é', 400), repeat('x', 300000)];
  pool text[];
BEGIN
  IF type LIKE '%[]' THEN
    RETURN quote_literal((ARRAY['{}', '{NULL}', '{1,2,3,4,5,6,7,8,9}'])[1 + floor(random() * 3)]) || '::' || type;
  END IF;
  CASE
    WHEN type LIKE 'text' OR type LIKE 'character%' THEN
      pool := texts || ARRAY(
        SELECT m[1] FROM pg_constraint, regexp_matches(pg_get_constraintdef(oid), '''([^'']*)''::text', 'g') AS m
        WHERE conrelid = owner ORDER BY m[1]);
    WHEN type = 'bigint' THEN
      pool := '{-9223372036854775808,-1,0,1,2,7,4294967296,9223372036854775806,9223372036854775807}';
    WHEN type = 'integer' THEN pool := '{-2147483648,-1,0,1,2,7,2147483647}';
    WHEN type = 'smallint' THEN pool := '{-32768,-1,0,1,3,15,16,32767}';
    WHEN type LIKE 'timestamp%' THEN
      pool := ARRAY['infinity', '-infinity', '4714-11-24 00:00:00+00 BC', '294276-12-31 23:59:59.999999+00',
                    '1970-01-01 00:00:00+00', '2030-01-01 00:00:00+00', '10000-01-01 00:00:00+00'];
    WHEN type = 'double precision' THEN pool := '{NaN,Infinity,-Infinity,1e308,-1,0,1e-300,1,3162240000}';
    WHEN type = 'boolean' THEN pool := '{t,f}';
    WHEN type = 'uuid' THEN
      pool := '{00000000-0000-0000-0000-000000000000,ffffffff-ffff-ffff-ffff-ffffffffffff}';
    WHEN type = 'bytea' THEN pool := ARRAY['', '\x00', '\xff', '\x7b7d', '\x7b2261223a', '\x6e756c6c'];
    WHEN type = 'jsonb' THEN
      pool := ARRAY['null', '[]', '{}', '1', '"x"', 'true', '[null]', '[[]]', '{"a": null}', '{"": {"": []}}',
                    '{"stream": 1, "sequence": "x"}', '-1e400', '[1, "a", {"name": 7}]', '9223372036854775808', '[{}]'];
    WHEN type = 'pg_snapshot' THEN
      pool := ARRAY['1:1:', '10:20:12,15', '1:9223372036854775807:', '9223372036854775806:9223372036854775807:'];
    WHEN type = 'xid8' THEN pool := '{0,1,3,18446744073709551615}';
    ELSE RAISE 'no values of type %', type;
  END CASE;
  RETURN quote_literal(pool[1 + floor(random() * cardinality(pool))]) || '::' || type;
END $$;

-- A value for this column: NULL, its default, one that a column of that name has somewhere, JSON
-- of which a part is another, or any.
CREATE FUNCTION pg_temp.value_for(owner regclass, name text, type text, default_value text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  chance float := random();
  source regclass;
  found text;
  part text;
BEGIN
  IF chance < 0.1 THEN RETURN 'NULL::' || type; END IF;
  IF chance < 0.25 AND default_value IS NOT NULL THEN RETURN default_value; END IF;
  IF chance < 0.6 THEN
    SELECT attrelid INTO source FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
    WHERE relnamespace = 'oncebox'::regnamespace AND relkind = 'r' AND attname = name AND format_type(atttypid, atttypmod) = type
    ORDER BY random() LIMIT 1;
    EXECUTE format('SELECT %I::text FROM %s ORDER BY random() LIMIT 1', name, source) INTO found;
    IF found IS NULL THEN RETURN pg_temp.any_value(owner, type); END IF;
    IF type = 'jsonb' AND random() < 0.7 THEN
      SELECT key INTO part FROM jsonb_each(CASE jsonb_typeof(found::jsonb) WHEN 'object' THEN found::jsonb ELSE '{}' END)
      ORDER BY random() LIMIT 1;
      EXECUTE format('SELECT jsonb_set($1, ARRAY[$2], %s)::text', pg_temp.any_value(owner, type))
      INTO found USING found::jsonb, coalesce(part, '0');
    END IF;
    RETURN quote_literal(found) || '::' || type;
  END IF;
  RETURN pg_temp.any_value(owner, type);
EXCEPTION WHEN others THEN RETURN pg_temp.any_value(owner, type);
END $$;

CREATE FUNCTION pg_temp.spoil(tables regclass[], tries int) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
  owner regclass;
  statement text;
  share float;
  taken int;
BEGIN
  FOREACH owner IN ARRAY tables LOOP
    FOR try IN 1..tries LOOP
      share := CASE WHEN random() < 0.4 THEN 1 ELSE random() * 0.6 END;
      SELECT CASE WHEN random() < 0.25
        THEN format('UPDATE %s SET %s WHERE ctid = (SELECT ctid FROM %s ORDER BY random() LIMIT 1)', owner,
                    (array_agg(format('%I = %s', name, value) ORDER BY random()))[1], owner)
        ELSE format('INSERT INTO %s (%s) OVERRIDING SYSTEM VALUE SELECT %s FROM %s', owner,
                    string_agg(quote_ident(name), ', ' ORDER BY place),
                    string_agg(CASE WHEN share = 1 OR random() < share THEN value ELSE 'r.' || quote_ident(name) END, ', '
                               ORDER BY place),
                    CASE share WHEN 1 THEN '(SELECT) AS r'
                    ELSE format('(SELECT * FROM %s ORDER BY random() LIMIT 1) AS r', owner) END)
        END INTO statement
      FROM (SELECT attnum AS place, attname AS name,
                   pg_temp.value_for(owner, attname, format_type(atttypid, atttypmod), pg_get_expr(adbin, adrelid)) AS value
            FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
            WHERE attrelid = owner AND attnum > 0 AND NOT attisdropped
            ORDER BY attnum) AS columns;
      BEGIN
        EXECUTE statement;
        GET DIAGNOSTICS taken = ROW_COUNT;
        IF taken > 0 THEN RETURN NEXT statement; END IF;
      EXCEPTION WHEN others THEN NULL;
      END;
    END LOOP;
  END LOOP;
END $$;
