package oncebox;

import io.nats.client.support.JsonParseException;
import io.nats.client.support.JsonParser;
import io.nats.client.support.JsonValue;
import java.sql.Connection;
import java.sql.PreparedStatement;
import oncebox.Handler.Dead;
import oncebox.Handler.Outcome;

/** Charges orders, and enqueues a receipt for each. DATABASE_URL and NATS_URL say where. */
public final class Payment {
    private static final String CHARGE = "INSERT INTO charge (id, cents) VALUES (?, ?)";
    private static final String RECEIPT = "SELECT oncebox.enqueue_json(oncebox.step_key(?, 'receipt'), 'payments.made',"
            + " jsonb_build_object('order', ?::text))";

    private Payment() {}

    static Outcome charge(Connection connection, Message message) throws Exception {
        JsonValue order;
        try {
            order = JsonParser.parse(message.payload());
        } catch (JsonParseException error) {
            throw new Dead("the payload does not decode: " + error.getMessage());
        }
        if (order.map == null || order.map.get("order") == null || order.map.get("cents") == null) {
            throw new Dead("the payload does not decode: it has no order or no cents");
        }
        String id = order.map.get("order").string;
        Number cents = order.map.get("cents").number;
        if (cents.longValue() < 0) {
            throw new Dead("a negative price");
        }
        if (cents.longValue() == 0) {
            return Outcome.reject("\"nothing to charge\"");
        }
        try (PreparedStatement charge = connection.prepareStatement(CHARGE)) {
            charge.setString(1, id);
            charge.setLong(2, cents.longValue());
            charge.executeUpdate();
        }
        try (PreparedStatement receipt = connection.prepareStatement(RECEIPT)) {
            receipt.setString(1, message.key());
            receipt.setString(2, id);
            receipt.execute();
        }
        return Outcome.done("{\"charged\": " + cents + "}");
    }

    public static void main(String[] arguments) throws Exception {
        // Also right with autocommit off, as Spring Boot's spring.datasource.hikari.auto-
        // commit=false has it.
        var pool = Service.pool(System.getenv("DATABASE_URL"), 8, false);
        var nats = Service.nats(System.getenv("NATS_URL"));
        var inbox = new Inbox(pool, Inbox.Settings.of("payment-service:charge"), Payment::charge);
        var settings = new Consumer.Settings("ORDERS", "payment", "orders.placed", null, 4, 64);
        Service.run(inbox, new Consumer(nats, settings, inbox));
    }
}
