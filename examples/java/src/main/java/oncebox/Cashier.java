package oncebox;

import io.nats.client.support.JsonParser;
import io.nats.client.support.JsonValue;
import java.net.ConnectException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.sql.Connection;
import java.time.Duration;
import java.util.Map;
import oncebox.Handler.Outcome;
import oncebox.Lease.NotSent;
import oncebox.Lease.Question;
import oncebox.Lease.Rejected;

/**
 * Charges a card and pays out, at a gateway of another company, then books both: docs/effects.md.
 */
public final class Cashier implements Effects.Leased {
    private static final Duration TIMEOUT = Duration.ofSeconds(1);
    private static final Duration SETTLES = Duration.ofSeconds(4);
    private final String gateway = "http://" + System.getenv("GATEWAY");
    private final HttpClient http = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).connectTimeout(TIMEOUT).build();

    @Override
    public Outcome handle(Lease lease, Message message) throws Exception {
        Map<String, JsonValue> order = JsonParser.parse(message.payload()).map;
        long cents = order.get("cents").number.longValue();
        String charged;
        try {
            charged = lease.effect("charge", TIMEOUT, key -> pay("/charges", key, cents));
        } catch (Rejected no) {
            return Outcome.reject("{\"order\": " + order.get("order").number + ", \"numbers\": null}");
        }
        String paid = lease.effect("pay-out", TIMEOUT, SETTLES, key -> pay("/payouts", key, cents), this::find);
        return Outcome.done("{\"order\": " + order.get("order").number + ", \"numbers\": [" + number(charged) + ", " + number(paid) + "]}");
    }

    @Override
    public void finish(Connection connection, Message message, Outcome outcome) throws Exception {
        if (outcome.isRejected()) {
            return;
        }
        Map<String, JsonValue> settled = JsonParser.parse(outcome.json()).map;
        try (var insert = connection.prepareStatement("INSERT INTO settlement (order_id, charge, payout) VALUES (?, ?, ?)")) {
            insert.setLong(1, settled.get("order").number.longValue());
            insert.setLong(2, settled.get("numbers").array.get(0).number.longValue());
            insert.setLong(3, settled.get("numbers").array.get(1).number.longValue());
            insert.executeUpdate();
        }
    }

    /** On the page of charges the gateway acts once for a key, on that of payouts each time. */
    private String pay(String page, String key, long cents) throws Exception {
        String body = "{\"reference\": \"" + key + "\", \"cents\": " + cents + "}";
        var request = HttpRequest.newBuilder(URI.create(gateway + page)).header("Idempotency-Key", key).timeout(TIMEOUT)
                .POST(HttpRequest.BodyPublishers.ofString(body)).build();
        HttpResponse<String> answer;
        try {
            answer = http.send(request, HttpResponse.BodyHandlers.ofString());
        } catch (ConnectException refused) {
            throw new NotSent(refused);
        }
        switch (answer.statusCode()) {
            case 200:
                return answer.body();
            case 402:
                throw new Rejected("card declined");
            default:
                throw new IllegalStateException("the gateway answers " + answer.statusCode());
        }
    }

    private String find(String key) throws Exception {
        var request = HttpRequest.newBuilder(URI.create(gateway + "/payouts/" + key)).timeout(TIMEOUT).build();
        var answer = http.send(request, HttpResponse.BodyHandlers.ofString());
        return switch (answer.statusCode()) {
            case 200 -> answer.body();
            case 404 -> Question.ABSENT;
            default -> Question.UNKNOWN;
        };
    }

    private static Number number(String receipt) throws Exception {
        return JsonParser.parse(receipt).map.get("number").number;
    }

    public static void main(String[] arguments) throws Exception {
        // A request goes over one connection once: Java must not send a POST again behind our back.
        System.setProperty("jdk.httpclient.enableAllMethodRetry", "false");
        System.setProperty("jdk.httpclient.disableRetryConnect", "true");
        System.setProperty("jdk.httpclient.keepalive.timeout", "0");
        var pool = Service.pool(System.getenv("DATABASE_URL"), 12, false);
        var limits = new Inbox.Settings("cashier-service:settle", 1000, Duration.ofMillis(200), Duration.ofSeconds(1), Duration.ofMinutes(1));
        var lease = Duration.ofSeconds(Long.parseLong(System.getenv("LEASE_SECONDS")));
        var effects = new Effects(pool, limits, lease, new Cashier());
        String filter = System.getenv().getOrDefault("SUBJECT_PREFIX", "") + "orders.placed";
        var settings = new Consumer.Settings(System.getenv("STREAM"), "cashier", filter, null, 4, 1, Duration.ofSeconds(2));
        Service.run(effects, new Consumer(Service.nats(System.getenv("NATS_URL")), settings, effects));
    }
}
