#!/usr/bin/env bash
# Kafka Connect 4.1.0, SimpleHeaderConverter, which is the default header.converter
# Expected: the text of a header, such as an idempotency key, passes through unchanged
# Seen: it is parsed as a literal: 0042 leaves as 42, 1e5 as 100000, and "1,2" as 1
. "$(dirname "$0")/lib.sh"

seen=$(java_run org.apache.kafka:connect-api:4.1.0 org.slf4j:slf4j-nop:1.7.36 <<'JAVA'
import static java.nio.charset.StandardCharsets.UTF_8;
import java.util.Map;
import org.apache.kafka.connect.storage.SimpleHeaderConverter;

public class Main {
    public static void main(String[] none) {
        var converter = new SimpleHeaderConverter();
        converter.configure(Map.of());
        for (var key : new String[] {"order-7", "0042", "1e5", "1.10", "1,2", "9007199254740993.10"}) {
            var read = converter.toConnectHeader("orders", "key", key.getBytes(UTF_8));
            var sent = converter.fromConnectHeader("orders", "key", read.schema(), read.value());
            System.out.println(key + " -> " + new String(sent, UTF_8));
        }
    }
}
JAVA
)
same "$seen" 'order-7 -> order-7
0042 -> 42
1e5 -> 100000
1.10 -> 1.1
1,2 -> 1
9007199254740993.10 -> 9.0071993E15' "keys in headers change on their way, and two keys become one"
