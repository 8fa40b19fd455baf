#!/usr/bin/env bash
# CloudEvents SDK for Java 4.0.1 (cloudevents-json-jackson), data_base64 without a datacontenttype
# Expected: an event that was read is written as it was, with data_base64
# Seen: the bytes are written raw behind "data":, and the result is not JSON
. "$(dirname "$0")/lib.sh"

seen=$(java_run io.cloudevents:cloudevents-json-jackson:4.0.1 <<'JAVA'
import static java.nio.charset.StandardCharsets.UTF_8;
import io.cloudevents.jackson.JsonFormat;

public class Main {
    public static void main(String[] none) {
        var head = "{\"specversion\":\"1.0\",\"id\":\"1\",\"source\":\"/s\",\"type\":\"t\",";
        var format = new JsonFormat();
        var event = format.deserialize((head + "\"data_base64\":\"AQI=\"" + "}").getBytes(UTF_8));
        
        System.out.println(new String(format.serialize(event), UTF_8).substring(head.length()));
    }
}
JAVA
)
same "$(printf %s "$seen" | od -An -c | tr -d ' \n')" '"data":001002}' \
    "raw bytes stand where a JSON value must stand; no parser reads the event"
