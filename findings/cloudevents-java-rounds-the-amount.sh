#!/usr/bin/env bash
# CloudEvents SDK for Java 4.0.1 (cloudevents-json-jackson), a structured event
# Expected: the data of an event arrives with the digits that were sent
# Seen: every fraction passes through a double: digits and trailing zeros are lost, and the hash of the data changes
. "$(dirname "$0")/lib.sh"

seen=$(java_run io.cloudevents:cloudevents-json-jackson:4.0.1 <<'JAVA'
import static java.nio.charset.StandardCharsets.UTF_8;
import io.cloudevents.jackson.JsonFormat;

public class Main {
    public static void main(String[] none) {
        var head = "{\"specversion\":\"1.0\",\"id\":\"1\",\"source\":\"/s\",\"type\":\"t\",";
        var format = new JsonFormat();
        var event = format.deserialize((head + "\"data\":{\"amount\":1.10,\"total\":12345678901234567.89}" + "}").getBytes(UTF_8));
        System.out.println(new String(event.getData().toBytes(), UTF_8));
        System.out.println(new String(format.serialize(event), UTF_8).substring(head.length()));
    }
}
JAVA
)
same "$seen" '{"amount":1.1,"total":1.2345678901234568E16}
"datacontenttype":"application/json","data":{"amount":1.1,"total":1.2345678901234568E16}}' \
    "numbers of the data are rounded before a handler sees them"
