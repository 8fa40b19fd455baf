#!/usr/bin/env bash
# Debezium 3.3.2 outbox event router, table.expand.json.payload=true, Kafka Connect 4.1.0
# Expected: an event with an empty list arrives with an empty list, and a null as a null
# Seen: both members are left out, so a consumer cannot tell "no items" from "no word of items"
. "$(dirname "$0")/lib.sh"

seen=$(java_run io.debezium:debezium-core:3.3.2.Final org.apache.kafka:connect-json:4.1.0 org.apache.kafka:connect-transforms:4.1.0 org.slf4j:slf4j-nop:1.7.36 <<'JAVA'
import io.debezium.transforms.outbox.EventRouter;
import java.util.Map;
import org.apache.kafka.connect.data.*;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.source.SourceRecord;

public class Main {
    public static void main(String[] none) {
        var json = SchemaBuilder.string().name("io.debezium.data.Json").optional().build();
        var row = SchemaBuilder.struct().optional();
        for (var f : "id aggregatetype aggregateid type".split(" ")) row.field(f, Schema.STRING_SCHEMA);
        row.field("payload", json);
        var source = SchemaBuilder.struct().field("ts_ms", Schema.INT64_SCHEMA).build();
        var envelope = SchemaBuilder.struct().name("shop.outbox.Envelope").field("before", row)
            .field("after", row).field("source", source).field("op", Schema.STRING_SCHEMA)
            .field("ts_ms", Schema.OPTIONAL_INT64_SCHEMA).build();
        var router = new EventRouter<SourceRecord>();
        router.configure(Map.of("table.expand.json.payload", "true"));
        var converter = new JsonConverter();
        converter.configure(Map.of("schemas.enable", "false"), false);
        for (var payload : new String[] {"{\"order\":\"7\",\"items\":[]}", "{\"order\":\"7\",\"note\":null}"}) {
            var after = new Struct(row).put("id", "1").put("aggregatetype", "order")
                .put("aggregateid", "7").put("type", "placed").put("payload", payload);
            var event = new Struct(envelope).put("after", after).put("op", "c").put("ts_ms", 1L)
                .put("source", new Struct(source).put("ts_ms", 1L));
            var out = router.apply(new SourceRecord(Map.of(), Map.of(), "shop.outbox", envelope, event));
            System.out.println(new String(converter.fromConnectData("t", out.valueSchema(), out.value())));
        }
    }
}
JAVA
)
same "$seen" '{"order":"7"}
{"order":"7"}' "an empty list, and a null, are gone from the event that consumers read"
