#!/usr/bin/env bash
# Flyway 11.14.0 with PostgreSQL JDBC 42.7.8 on PostgreSQL 18.4, a migration with a function in the
# SQL standard's form, BEGIN ATOMIC ... END
# Expected: Flyway sends the function as one statement, whatever expressions its body has, as it does
# with one CASE, with two in a row, and with semicolons between the statements of the body
# Seen: a CASE within a CASE ends the function for Flyway: it cuts there, and PostgreSQL says "syntax
# error at end of input"; psql runs the same file
. "$(dirname "$0")/lib.sh"
postgres_start

function_with() {
    mkdir -p "$1"
    printf 'CREATE FUNCTION %s(n int) RETURNS text LANGUAGE SQL BEGIN ATOMIC\n%s\nEND;\nCREATE TABLE after_%s ();\n' \
        "$1" "$2" "$1" >"$1/V1__$1.sql"
}
function_with statements "SELECT 'a'; SELECT 'b';"
function_with one "SELECT CASE WHEN n < 0 THEN 'negative' ELSE 'positive' END;"
function_with two "SELECT CASE WHEN n < 0 THEN 'a' END || CASE WHEN n > 0 THEN 'b' END;"
function_with nested "SELECT CASE WHEN n < 0 THEN 'negative' ELSE CASE WHEN n > 0 THEN 'positive' ELSE 'zero' END END;"

seen=$(java_run org.flywaydb:flyway-database-postgresql:11.14.0 org.postgresql:postgresql:42.7.8 <<'JAVA'
import org.flywaydb.core.Flyway;

public class Main {
    public static void main(String[] none) {
        for (var name : new String[] {"statements", "one", "two", "nested"}) {
            var url = "jdbc:postgresql://127.0.0.1:" + System.getenv("PGPORT") + "/postgres";
            var flyway = Flyway.configure().dataSource(url, "postgres", "").table("history_" + name);
            try {
                flyway.baselineOnMigrate(true).baselineVersion("0").locations("filesystem:" + name).load().migrate();
                System.out.println(name + " ok");
            } catch (Exception e) {
                System.out.println(name + " " + e.getMessage().lines().filter(line -> line.startsWith("Message")).findFirst().get());
            }
        }
    }
}
JAVA
)
sql --file=nested/V1__nested.sql
seen="$seen
psql $(sql --command='SELECT nested(1)')"
same "$seen" 'statements ok
one ok
two ok
nested Message    : ERROR: syntax error at end of input
psql positive' "Flyway cuts a function in BEGIN ATOMIC behind a CASE within a CASE"
