#!/usr/bin/env bash
# PostgreSQL JDBC 42.7.8 on PostgreSQL 18.4, Statement.execute() of two statements, of which the
# first makes a function in the SQL standard's form, BEGIN ATOMIC ... END
# Expected: both run, as two other statements in one string do, and as in psql
# Seen: the driver looks for no semicolon behind the body, and sends both as one prepared statement,
# which PostgreSQL refuses; the function as the last statement, or with RETURN or a string, is fine
. "$(dirname "$0")/lib.sh"
postgres_start

seen=$(java_run org.postgresql:postgresql:42.7.8 <<'JAVA'
import java.sql.DriverManager;

public class Main {
    public static void main(String[] none) throws Exception {
        var url = "jdbc:postgresql://127.0.0.1:" + System.getenv("PGPORT") + "/postgres";
        var body = "RETURNS int LANGUAGE SQL ";
        var table = "; CREATE TABLE %s ()";
        run(url, "atomic", "CREATE FUNCTION f1() " + body + "BEGIN ATOMIC SELECT 1; END" + table);
        run(url, "atomic_last", "CREATE TABLE %s (); CREATE FUNCTION f2() " + body + "BEGIN ATOMIC SELECT 1; END");
        run(url, "returns", "CREATE FUNCTION f3() " + body + "RETURN 1" + table);
        run(url, "quoted", "CREATE FUNCTION f4() " + body + "AS $$ SELECT 1; $$" + table);
    }

    static void run(String url, String name, String sql) throws Exception {
        try (var session = DriverManager.getConnection(url, "postgres", ""); var statement = session.createStatement()) {
            statement.execute(sql.formatted(name));
            System.out.println(name + ": ok");
        } catch (java.sql.SQLException e) {
            System.out.println(name + ": " + e.getMessage());
        }
    }
}
JAVA
)
echo 'CREATE FUNCTION f1() RETURNS int LANGUAGE SQL BEGIN ATOMIC SELECT 1; END; CREATE TABLE psql ()' >one.sql
sql --file=one.sql
seen="$seen
psql: $(sql --command="SELECT to_regclass('psql')")"
same "$seen" 'atomic: ERROR: cannot insert multiple commands into a prepared statement
atomic_last: ok
returns: ok
quoted: ok
psql: psql' "behind a function in BEGIN ATOMIC the driver does not see the next statement"
