package oncebox;

import com.sun.net.httpserver.HttpServer;
import io.nats.client.support.JsonParser;
import io.nats.client.support.JsonValue;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Executors;
import oncebox.IdempotencyFilter.Request;
import oncebox.IdempotencyFilter.Response;

/**
 * A shop behind the HTTP layer, whose handler does as the header x-do says, as that of each
 * language does.
 */
public final class Serving {
    private static final String INSERT = "INSERT INTO effect (key, n, line) VALUES (?, ?, ?) RETURNING id";

    private Serving() {}

    private static void run(Connection connection, String... texts) throws SQLException {
        for (String text : texts) {
            try (Statement statement = connection.createStatement()) {
                statement.execute(text);
            }
        }
    }

    private static Response text(int status, String text, String... headers) {
        List<String[]> pairs = new java.util.ArrayList<>();
        for (int at = 0; at < headers.length; at += 2) {
            pairs.add(new String[] {headers[at], headers[at + 1]});
        }
        return new Response(status, pairs, text.getBytes(StandardCharsets.UTF_8), false);
    }

    private static Response handle(Connection connection, Request request) throws Exception {
        String command = request.exchange().getRequestHeaders().getFirst("X-Do");
        String[] parts = (command == null ? "order" : command).split(":");
        int number = parts.length > 1 ? Integer.parseInt(parts[1]) : 0;
        String run = Sql.row(connection, "SELECT nextval('run')")[0];
        String body = new String(request.body(), StandardCharsets.UTF_8);
        if (!body.matches("[0-9]{1,18}")) {
            return text(400, "\"" + body + "\" is not a number", "content-type", "text/plain");
        }
        long n = Long.parseLong(body);
        String id = Sql.row(connection, INSERT, request.key(), n, request.tenant())[0];
        switch (parts[0]) {
            case "status":
                return text(number, "status " + number + " of run " + run);
            case "lost":
                try {
                    run(connection, "SELECT pg_terminate_backend(pg_backend_pid())");
                } catch (SQLException terminated) {
                    return text(number, "no money");
                }
                return text(number, "no money");
            case "keep":
                return new Response(number, List.of(), "no money".getBytes(StandardCharsets.UTF_8), true);
            case "panic":
                throw new AssertionError("this handler fails");
            case "conflict":
                run(connection, "DO $$ BEGIN RAISE SQLSTATE '40001'; END $$");
                break;
            case "swallow":
                try {
                    run(connection, "SELECT 1 / 0");
                } catch (SQLException hidden) {
                    break;
                }
                break;
            case "restart":
                run(connection, "ROLLBACK", "BEGIN");
                Sql.row(connection, INSERT, request.key(), n, request.tenant());
                break;
            case "commit":
                run(connection, "COMMIT");
                break;
            case "enqueue":
                Sql.row(connection, "SELECT oncebox.enqueue_json(oncebox.step_key(?, 'pay'), 'orders.placed', '{}'::jsonb)", request.key());
                break;
            case "locked":
                run(connection, "SELECT pg_advisory_xact_lock_shared(4711)");
                break;
            case "hang":
                Thread.sleep(60_000);
                break;
            case "large":
                return text(201, "x".repeat(number), "location", "/orders/" + id);
            case "encoded":
                return text(201, "as if packed", "content-encoding", "gzip", "content-language", "de");
            default:
        }
        return text(201, "{\"z\" : 1.0,\n\t\"id\":" + id + ", \"a\":\"\\u00e9\" }\n", "content-type", "application/vnd.shop+json; v=1",
                "location", "/orders/" + id, "etag", "W/\"1\"", "link", "</orders>; rel=\"collection\"", "link", "</>; rel=\"index\"",
                "x-request-id", Long.toHexString(System.nanoTime()));
    }

    /** The server reads a header as Latin-1; null, if its bytes are no UTF-8. */
    private static String utf8(String latin) {
        try {
            var bytes = java.nio.ByteBuffer.wrap(latin.getBytes(StandardCharsets.ISO_8859_1));
            return StandardCharsets.UTF_8.newDecoder().decode(bytes).toString();
        } catch (java.nio.charset.CharacterCodingException odd) {
            return null;
        }
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, JsonValue> told = JsonParser.parse(System.getenv("SETTINGS")).map;
        String url = System.getenv("DATABASE_URL");
        // The test cuts the connection at the text of COMMIT, which goes out each time then.
        var pool = Service.pool(url + (url.contains("?") ? "&" : "?") + "prepareThreshold=0", 8, false);
        var server = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(System.getenv("PORT"))), 0);
        var settings = new IdempotencyFilter.Settings("shop", "/orders", exchange -> {
            String tenant = exchange.getRequestHeaders().getFirst("X-Tenant");
            return tenant == null ? "main" : utf8(tenant);
        }, told.get("request_body_max").number.intValue(), told.get("response_body_max").number.intValue(),
                Duration.ofMillis((long) (told.get("in_flight_wait").number.doubleValue() * 1000)),
                Duration.ofMillis((long) (told.get("handler_timeout").number.doubleValue() * 1000)), told.get("documentation").string);
        server.createContext("/orders", new IdempotencyFilter(pool, settings, Serving::handle, exchange -> {
            try (exchange) {
                exchange.sendResponseHeaders(200, -1);
            }
        }));
        server.setExecutor(Executors.newFixedThreadPool(16));
        server.start();
    }
}
