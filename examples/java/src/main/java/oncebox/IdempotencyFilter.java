package oncebox;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpHandler;
import io.nats.client.support.JsonParser;
import io.nats.client.support.JsonValue;
import java.io.IOException;
import java.lang.System.Logger.Level;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeoutException;
import java.util.function.Function;
import javax.sql.DataSource;
import oncebox.Problem.Refused;
import org.postgresql.PGConnection;

/**
 * Has a request with an Idempotency-Key done once, and answers each repetition of it alike: the key
 * is claimed in the transaction that the handler writes through, and the response stored in it.
 * When anything is not known, nothing is done and the client is told to ask again.
 */
public final class IdempotencyFilter implements HttpHandler {
    private static final System.Logger LOG = System.getLogger("oncebox");
    private static final Set<String> SAFE = Set.of("GET", "HEAD", "OPTIONS", "TRACE");
    private static final Set<Integer> NOT_STORED = Set.of(401, 403, 408, 409, 425, 429);
    private static final Set<String> KEPT = Set.of("content-type", "content-encoding", "location", "etag", "link");
    private static final int KEY_MAX = 128;
    private static final int TENANT_MAX = 255;
    private static final int METHOD_MAX = 20;
    private static final String CLAIM = "SET TRANSACTION DEFERRABLE;"
            + " SELECT answer, key, status::text, headers::text, encode(body, 'hex'), " + Transactions.STATE
            + ", set_config('idle_in_transaction_session_timeout', ?, true) FROM oncebox.claim_request(?, ?, ?,"
            + " oncebox.request_fingerprint(?, ?, ?, '[]'::jsonb, ?, ?))";
    private static final String SETTLE = "SELECT oncebox.settle_request(?, ?, ?, ?, ?, ?::text::jsonb, ?), " + Transactions.STATE;

    /**
     * @param tenant the user's id, by your authentication before this layer; without one the
     *     answer is 403
     * @param inFlightWait how long a copy waits for the first request
     * @param limit how long a handler may take
     * @param documentation the address of your API's, for a Link in the layer's own answers; null
     *     for none
     */
    public record Settings(String scope, String route, Function<HttpExchange, String> tenant, int requestMax, int responseMax,
            Duration inFlightWait, Duration limit, String documentation) {}

    /**
     * @param key the root of the keys of messages that you enqueue: oncebox.step_key(key, 'ship')
     */
    public record Request(HttpExchange exchange, String key, String tenant, byte[] body) {}

    /** @param keepsWrites whether a 4xx commits what the handler has written, too */
    public record Response(int status, List<String[]> headers, byte[] body, boolean keepsWrites) {}

    /**
     * What you write: it leaves COMMIT and ROLLBACK to the layer. An exception is a 500 that is not
     * stored.
     */
    @FunctionalInterface
    public interface Service {
        Response handle(Connection connection, Request request) throws Exception;
    }

    private record Pending(HttpExchange exchange, String scope, String tenant, String clientKey, byte[] body) {}

    private final DataSource pool;
    private final Settings settings;
    private final Service service;
    private final HttpHandler reads;
    private final Set<String> registered = ConcurrentHashMap.newKeySet();

    /** @param reads answers GET, HEAD, OPTIONS and TRACE, which need no key */
    public IdempotencyFilter(DataSource pool, Settings settings, Service service, HttpHandler reads) {
        this.pool = pool;
        this.settings = settings;
        this.service = service;
        this.reads = reads;
    }

    @Override
    public void handle(HttpExchange exchange) throws IOException {
        if (SAFE.contains(exchange.getRequestMethod())) {
            reads.handle(exchange);
            return;
        }
        Response response;
        try {
            response = answer(identify(exchange));
        } catch (Refused refused) {
            response = problem(refused.problem);
            if (refused.problem.status >= 500) {
                LOG.log(Level.WARNING, "a request of {0} is answered with {1}: {2}", settings.scope, refused.problem.status,
                        Inbox.reason(refused.getCause() == null ? refused : refused.getCause()));
            }
        } catch (Exception | Error error) {
            LOG.log(Level.WARNING, "a request of {0} is answered with 503: {1}", settings.scope, Inbox.reason(error));
            response = problem(Problem.UNAVAILABLE);
        }
        for (String[] header : response.headers) {
            exchange.getResponseHeaders().add(header[0], header[1]);
        }
        try (exchange) {
            exchange.sendResponseHeaders(response.status, response.body.length == 0 ? -1 : response.body.length);
            exchange.getResponseBody().write(response.body);
        } catch (IOException away) {
            // The client has gone away, and finds the stored response when it comes again.
        }
    }

    private Response problem(Problem problem) {
        Response response = problem.response(0);
        if (settings.documentation != null) {
            response.headers.add(new String[] {"link", "<" + settings.documentation + ">; rel=\"describedby\""});
        }
        return response;
    }

    private Pending identify(HttpExchange exchange) throws Refused {
        if (exchange.getRequestMethod().length() > METHOD_MAX) {
            throw Problem.METHOD_UNKNOWN.refused();
        }
        List<String> values = exchange.getRequestHeaders().get("Idempotency-Key");
        if (values == null) {
            throw Problem.KEY_MISSING.refused();
        }
        String key = key(values);
        String tenant = settings.tenant.apply(exchange);
        if (tenant == null || tenant.isEmpty() || tenant.getBytes(StandardCharsets.UTF_8).length > TENANT_MAX
                || tenant.chars().anyMatch(Character::isISOControl)) {
            throw Problem.TENANT_MISSING.refused();
        }
        byte[] body;
        try {
            body = exchange.getRequestBody().readNBytes(settings.requestMax + 1);
        } catch (IOException error) {
            throw Problem.BODY_UNREADABLE.because(error);
        }
        if (body.length > settings.requestMax) {
            throw Problem.BODY_TOO_LARGE.refused();
        }
        String scope = settings.scope + " " + exchange.getRequestMethod() + " " + settings.route;
        return new Pending(exchange, scope, tenant, key, body);
    }

    /** A string of a structured field (RFC 9651), or a bare token; each value must say the same. */
    private static String key(List<String> values) throws Refused {
        String text = values.get(0).strip();
        StringBuilder key = new StringBuilder();
        boolean isQuoted = text.startsWith("\"");
        boolean isClosed = !isQuoted;
        boolean isKey = values.stream().allMatch(values.get(0)::equals);
        for (int at = isQuoted ? 1 : 0; at < text.length(); at++) {
            char c = text.charAt(at);
            if (isQuoted && c == '"') {
                isClosed = true;
                isKey &= at == text.length() - 1;
                continue;
            }
            if (isQuoted && c == '\\') {
                c = ++at < text.length() ? text.charAt(at) : ' ';
                isKey &= c == '"' || c == '\\';
            }
            isKey &= c > ' ' && c < 127 && (isQuoted || "\"\\,;".indexOf(c) < 0);
            key.append(c);
        }
        if (!isKey || !isClosed || key.length() == 0 || key.length() > KEY_MAX) {
            throw Problem.KEY_MALFORMED.refused();
        }
        return key.toString();
    }

    /**
     * Goes on until the key is claimed, or done, or the wait is over; also when the client goes
     * away.
     */
    private Response answer(Pending p) throws Exception {
        if (!registered.contains(p.scope)) {
            Sql.committed(pool, "oncebox.register_scope(?, retention => interval '24 hours', kind => 'http')", p.scope);
            registered.add(p.scope);
        }
        for (long end = System.nanoTime() + settings.inFlightWait.toNanos();;) {
            Response response = attempt(p);
            if (response != null) {
                return response;
            }
            if (System.nanoTime() > end) {
                throw Problem.IN_FLIGHT.refused();
            }
            Thread.sleep(50);
        }
    }

    /** Null, if another request works on the key. */
    private Response attempt(Pending p) throws Exception {
        Connection connection = pool.getConnection();
        boolean isFit = false;
        try {
            boolean wasAutomatic = connection.getAutoCommit();
            connection.setAutoCommit(false);
            String[] claim = claim(connection, p);
            if (!claim[0].equals("new")) {
                return stored(claim);
            }
            Response response = call(connection, p, claim[1]);
            if (response.status >= 500 || NOT_STORED.contains(response.status)) {
                connection.rollback();
                return replayed(response, "false");
            }
            if (response.status >= 400 && !response.keepsWrites) {
                // A no is stored without the handler's writes.
                connection.rollback();
                claim = claim(connection, p);
                if (!claim[0].equals("new")) {
                    return stored(claim);
                }
            }
            String state = settle(connection, p, claim[1], response);
            connection.commit();
            connection.setAutoCommit(wasAutomatic);
            isFit = state.equals(claim[5]);
            return replayed(response, "false");
        } finally {
            Sql.giveBack(connection, isFit);
        }
    }

    private String[] claim(Connection connection, Pending p) throws Exception {
        var uri = p.exchange.getRequestURI();
        String type = p.exchange.getRequestHeaders().getFirst("Content-Type");
        try {
            return Sql.row(connection, CLAIM, settings.limit.toMillis() + 5000 + "ms", p.scope, p.tenant, p.clientKey,
                    p.exchange.getRequestMethod(), uri.getRawPath(), uri.getRawQuery() == null ? "" : uri.getRawQuery(),
                    type == null ? "" : type, p.body);
        } catch (SQLException error) {
            throw Inbox.state(error).equals("OB002") ? Problem.KEY_MALFORMED.because(error) : error;
        }
    }

    /** The answer to a key that is not new; null for one that another request works on. */
    private static Response stored(String[] claim) throws Exception {
        if (claim[0].equals("mismatch")) {
            throw Problem.KEY_REUSED.refused();
        }
        if (!claim[0].equals("replayed")) {
            return null;
        }
        if (claim[2] == null) {
            throw Problem.RESPONSE_UNKNOWN.refused();
        }
        int status = Integer.parseInt(claim[2]);
        boolean isKept = claim[4] != null;
        Response gone = Problem.RESPONSE_NOT_KEPT.response(status);
        List<String[]> headers = new ArrayList<>(isKept ? List.of() : gone.headers);
        for (JsonValue pair : JsonParser.parse(claim[3]).array) {
            String name = pair.array.get(0).string;
            if (isKept || !name.startsWith("content-")) {
                headers.add(new String[] {name, pair.array.get(1).string});
            }
        }
        byte[] body = isKept ? HexFormat.of().parseHex(claim[4]) : gone.body;
        return replayed(new Response(isKept ? status : gone.status, headers, body, false), "true");
    }

    private Response call(Connection connection, Pending p, String key) throws Refused {
        Fence fence = new Fence(connection);
        try {
            return Lease.within(settings.limit, () -> service.handle(fence.connection(), new Request(p.exchange, key, p.tenant, p.body)));
        } catch (TimeoutException late) {
            fence.end();
            try {
                connection.unwrap(PGConnection.class).cancelQuery();
                connection.abort(Runnable::run);
            } catch (SQLException dead) {
                late.addSuppressed(dead);
            }
            throw Problem.TOO_SLOW.because(late);
        } catch (Exception error) {
            String state = Inbox.state(error);
            boolean isOurs = state.startsWith("08") || state.startsWith("57P") || state.startsWith("40");
            throw (isOurs ? Problem.UNAVAILABLE : Problem.FAILED).because(error);
        } finally {
            fence.end();
        }
    }

    private String settle(Connection connection, Pending p, String key, Response response) throws Exception {
        List<JsonValue> kept = new ArrayList<>();
        for (String[] header : response.headers) {
            String name = header[0].toLowerCase(Locale.ROOT);
            if (KEPT.contains(name)) {
                kept.add(new JsonValue(List.of(new JsonValue(name), new JsonValue(header[1]))));
            }
        }
        byte[] body = response.body.length <= settings.responseMax ? response.body : null;
        try {
            return Sql.row(connection, SETTLE, p.scope, p.tenant, key, response.status >= 400, response.status,
                    new JsonValue(kept).toJson(), body)[1];
        } catch (SQLException error) {
            boolean isHandlers = Set.of("OB010", "25P02", "42501").contains(Inbox.state(error));
            throw isHandlers ? Problem.FAILED.because(error) : error;
        }
    }

    private static Response replayed(Response response, String is) {
        List<String[]> headers = new ArrayList<>(response.headers);
        headers.add(new String[] {"idempotent-replayed", is});
        return new Response(response.status, headers, response.body, response.keepsWrites);
    }
}
