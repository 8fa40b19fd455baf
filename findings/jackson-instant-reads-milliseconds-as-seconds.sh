#!/usr/bin/env bash
# jackson-databind 2.20.0 with jackson-datatype-jsr310 2.20.0 (Java)
# Expected: milliseconds since 1970, as Node writes them, are read alike into java.util.Date and java.time.Instant
# Seen: Date takes milliseconds, Instant takes seconds: the year 58882, without an error
. "$(dirname "$0")/lib.sh"

seen=$(java_run com.fasterxml.jackson.core:jackson-databind:2.20.0 \
    com.fasterxml.jackson.datatype:jackson-datatype-jsr310:2.20.0 <<'JAVA'
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.datatype.jsr310.JavaTimeModule;
import java.time.Instant;
import java.util.Date;

public class Main {
    record Event(Instant instant, Date date) {}

    public static void main(String[] none) throws Exception {
        var mapper = new ObjectMapper().registerModule(new JavaTimeModule());
        var text = "{\"instant\":1796000000000,\"date\":1796000000000}";
        var event = mapper.readValue(text, Event.class);
        System.out.println(event.date().toInstant());
        System.out.println(event.instant());
        System.out.println(mapper.writeValueAsString(event.date().toInstant()));
    }
}
JAVA
)
same "$seen" '2026-11-30T00:53:20Z
+58882-12-22T00:53:20Z
1796000000.000000000' "the same number is 2026 in a Date, and the year 58882 in an Instant"
