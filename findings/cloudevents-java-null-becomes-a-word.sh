#!/usr/bin/env bash
# CloudEvents SDK for Java 4.0.1 (cloudevents-json-jackson), an extension attribute that is null
# Expected: null means that the attribute is absent, as the JSON format says
# Seen: the attribute is present and holds the text "null", and is sent on so
. "$(dirname "$0")/lib.sh"

seen=$(java_run io.cloudevents:cloudevents-json-jackson:4.0.1 <<'JAVA'
import static java.nio.charset.StandardCharsets.UTF_8;
import io.cloudevents.jackson.JsonFormat;

public class Main {
    public static void main(String[] none) {
        var head = "{\"specversion\":\"1.0\",\"id\":\"1\",\"source\":\"/s\",\"type\":\"t\",";
        var format = new JsonFormat();
        var event = format.deserialize((head + "\"tenant\":null" + "}").getBytes(UTF_8));
        System.out.println(event.getExtension("tenant").getClass().getSimpleName());
        System.out.println(new String(format.serialize(event), UTF_8).substring(head.length()));
    }
}
JAVA
)
same "$seen" 'String
"tenant":"null"}' 'an attribute that is null is the four letters "null" afterwards'
