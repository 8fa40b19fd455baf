package oncebox;

import com.zaxxer.hikari.HikariDataSource;
import io.nats.client.support.JsonParser;
import io.nats.client.support.JsonValue;
import java.sql.Connection;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.Duration;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import oncebox.Handler.Dead;
import oncebox.Handler.Outcome;
import oncebox.Handler.RetryAfter;

/** A consumer whose handler does as the payload says: docs/conformance.md. */
public final class Conform {
    private static final String DIVISION_BY_ZERO = "22012";
    private final HikariDataSource log;
    private final HikariDataSource exhausted;
    private final Set<String> lost = ConcurrentHashMap.newKeySet();

    private static final class Odd extends Exception {
        private static final long serialVersionUID = 1;

        @Override
        public String getMessage() {
            throw new IllegalStateException("no text");
        }
    }

    private Conform(HikariDataSource log, HikariDataSource exhausted) {
        this.log = log;
        this.exhausted = exhausted;
    }

    private Outcome handle(Connection connection, Message message) throws Exception {
        Map<String, JsonValue> told = JsonParser.parse(message.payload()).map;
        String name = told.get("name").string;
        Sql.using(log, other -> {
            // With autocommit off, as the pool says.
            Sql.row(other, "INSERT INTO run (name, deliveries) VALUES (?, ?) RETURNING 1", name, message.deliveries());
            other.commit();
            return null;
        });
        Sql.row(connection, "INSERT INTO effect (name) VALUES (?) RETURNING 1", name);
        for (JsonValue text : told.get("sql").array) {
            try (Statement statement = connection.createStatement()) {
                statement.execute(text.string);
            } catch (SQLException error) {
                if (!DIVISION_BY_ZERO.equals(error.getSQLState())) {
                    throw error;
                }
            }
        }
        String reply = told.get("reply").bool ? "{\"did\": \"" + name + "\"}" : null;
        return end(told.get("do").string, name, connection, reply);
    }

    private Outcome end(String action, String name, Connection connection, String reply) throws Exception {
        switch (action) {
            case "reject":
                return Outcome.reject("\"no\"");
            case "dead":
                throw new Dead("no use");
            case "fail":
                throw new IllegalStateException("as it was told");
            case "panic":
                throw new AssertionError("as it was told");
            case "retry":
                throw new RetryAfter(Duration.ofMillis(700));
            case "conflict":
                if (lost.add(name)) {
                    Sql.row(connection, "DO $$ BEGIN RAISE SQLSTATE '40001'; END $$");
                }
                break;
            case "hang":
                Thread.sleep(60_000);
                break;
            case "late":
                new Thread(() -> late(name, connection)).start();
                break;
            case "types":
                for (String expected : new String[] {"true", "false"}) {
                    String sql = "SELECT (oncebox.enqueue_json(?, 'orders.placed', jsonb_build_object('name', ?::text)) IS NOT NULL)::text";
                    if (!Sql.row(connection, sql, name, name)[0].equals(expected)) {
                        throw new IllegalStateException("enqueued twice");
                    }
                }
                break;
            case "pool":
                exhausted.getConnection().close();
                break;
            case "exit":
                Runtime.getRuntime().halt(9);
                break;
            case "odd-reply":
                return Outcome.done("NaN");
            case "long-reply":
                return Outcome.done("\"" + "x".repeat(1 << 20) + "\"");
            case "odd-error":
                throw new Odd();
            case "odd-pause":
                throw new RetryAfter(Duration.ofSeconds(-1));
            default:
        }
        return Outcome.done(reply);
    }

    /** Goes on until the message has ended, and then writes again and again. */
    private void late(String name, Connection connection) {
        try {
            String ended = "SELECT count(*) FROM oncebox.inbox WHERE key = ?";
            while (Sql.using(log, other -> {
                String count = Sql.row(other, ended, name)[0];
                other.rollback();
                return count;
            }).equals("0")) {
                Thread.sleep(10);
            }
            for (int time = 0; time < 20; time++) {
                String said = "written";
                try {
                    Sql.row(connection, "INSERT INTO public.effect (name) VALUES (?) RETURNING 1", name);
                } catch (SQLException error) {
                    said = error.getMessage();
                }
                String text = said;
                Sql.using(log, other -> {
                    Sql.row(other, "INSERT INTO late (name, said) VALUES (?, ?) RETURNING 1", name, text);
                    other.commit();
                    return null;
                });
                Thread.sleep(10);
            }
        } catch (SQLException | InterruptedException error) {
            System.err.println("the log of late writes: " + error);
        }
    }

    public static void main(String[] arguments) throws Exception {
        String url = System.getenv("DATABASE_URL");
        String settings = System.getenv().getOrDefault("SETTINGS", "plain");
        var pool = Service.pool(url, 4, !settings.equals("manual_commit"));
        var exhausted = Service.pool(url, 1, true);
        exhausted.getConnection();   // Nobody gives it back.
        exhausted.setConnectionTimeout(250);
        var handler = new Conform(Service.pool(url, 4, true), exhausted);
        var limits = new Inbox.Settings("conform:test", 3, Duration.ofMillis(400), Duration.ofSeconds(2), Duration.ofSeconds(3));
        var inbox = new Inbox(pool, limits, handler::handle);
        int batch = settings.equals("batch") || settings.equals("set") ? 16 : 1;
        var consumer = new Consumer.Settings(System.getenv("STREAM"), "conform", null, "Tenant", 3, batch);
        Service.run(inbox, new Consumer(Service.nats(System.getenv("NATS_URL")), consumer, inbox));
    }
}
