package oncebox;

import io.nats.client.impl.Headers;
import java.time.OffsetDateTime;
import java.time.temporal.ChronoUnit;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * A message of JetStream. Its place in the stream is the same for each of its deliveries, and
 * PostgreSQL counts its attempts by it.
 *
 * @param key null if there is none; then {@code refusal} says why
 */
public record Message(String key, String refusal, String tenant, String subject, byte[] payload, Map<String, List<String>> headers,
        long deliveries, String stream, long sequence, OffsetDateTime storedAt) {
    private static final List<String> KEYS = List.of("Idempotency-Key", "x-idempotency-key");
    private static final int HEADERS_MAX = 12_000;
    private static final String OBJECT = "Oncebox-Object";

    /** Reads key and tenant; with {@code tenantHeader} null all messages belong to one tenant. */
    static Message of(io.nats.client.Message received, String tenantHeader) {
        String key = null;
        String tenant = "";
        String refusal = "no key: none of the headers " + String.join(", ", KEYS) + " is present";
        try {
            for (String name : KEYS) {
                key = key == null ? value(received.getHeaders(), name) : key;
            }
            if (tenantHeader != null) {
                tenant = value(received.getHeaders(), tenantHeader);
                if (tenant == null || tenant.isEmpty()) {
                    key = null;
                    tenant = "";
                    refusal = "no tenant: the header " + tenantHeader + " is not present";
                }
            }
            if (value(received.getHeaders(), OBJECT) != null) {
                key = null;
                refusal = "its payload is in the object store (header " + OBJECT + "), which this loop does not fetch:"
                        + " have the relay of this subject send it without a bucket, then retry the dead letter";
            }
        } catch (IllegalArgumentException several) {
            key = null;
            tenant = "";
            refusal = several.getMessage();
        }
        var place = received.metaData();
        byte[] payload = received.getData() == null ? new byte[0] : received.getData();
        // PostgreSQL keeps microseconds, and each delivery must have the same.
        var storedAt = place.timestamp().toOffsetDateTime().truncatedTo(ChronoUnit.MICROS);
        return new Message(key, refusal, tenant, received.getSubject(), payload, kept(received.getHeaders()),
                place.deliveredCount(), place.getStream(), place.streamSequence(), storedAt);
    }

    /** As it is buried if its key is none. */
    Message withoutKey() {
        return new Message(null, refusal, tenant, subject, payload, headers, deliveries, stream, sequence, storedAt);
    }

    /** The one value of a header, whose name has no case and whose value no blanks around it. */
    private static String value(Headers headers, String name) {
        String found = null;
        for (String each : headers == null ? List.<String>of() : headers.keySet()) {
            if (each.equalsIgnoreCase(name)) {
                for (String value : headers.get(each)) {
                    if (found != null && !found.equals(value.strip())) {
                        throw new IllegalArgumentException("the header " + name + " has several different values");
                    }
                    found = value.strip();
                }
            }
        }
        return found;
    }

    /** The headers as a dead letter keeps them, with each value of each: none, if PostgreSQL could not keep them. */
    private static Map<String, List<String>> kept(Headers headers) {
        Map<String, List<String>> kept = new TreeMap<>();
        int size = 0;
        for (String name : headers == null ? List.<String>of() : headers.keySet()) {
            kept.put(name, headers.get(name));
            size += name.length() + String.join("", headers.get(name)).length() + 6;
        }
        boolean isOdd = kept.toString().indexOf('\0') >= 0;
        return isOdd || size > HEADERS_MAX ? Map.of() : kept;
    }
}
