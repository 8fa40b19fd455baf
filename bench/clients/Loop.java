package oncebox;

import io.nats.client.Connection;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicInteger;
import javax.sql.DataSource;

/** The loop of clients.sh in Java: Loop bare|inbox|batch MESSAGES, prints messages a second. */
final class Loop {
    private static final int CONCURRENCY = 16;
    private final int messages;
    private final AtomicInteger handled = new AtomicInteger();
    private final CountDownLatch done = new CountDownLatch(1);
    private volatile long begun;
    private volatile long ended;

    private Loop(int messages) {
        this.messages = messages;
    }

    public static void main(String[] arguments) throws Exception {
        var loop = new Loop(Integer.parseInt(arguments[1]));
        var pool = Service.pool(System.getenv("DATABASE_URL"), CONCURRENCY, false);
        var nats = Service.nats(System.getenv("NATS_URL"));
        if (arguments[0].equals("bare")) {
            var workers = Executors.newFixedThreadPool(CONCURRENCY);
            for (int worker = 0; worker < CONCURRENCY; worker++) {
                workers.submit(() -> loop.bare(nats, pool));
            }
            loop.done.await();
            workers.shutdown();
        } else {
            boolean isBatch = arguments[0].equals("batch");
            var inbox = new Inbox(pool, Inbox.Settings.of("bench:java"), (connection, message) -> {
                loop.effect(connection, message.payload());
                return Handler.Outcome.done();
            });
            inbox.register();
            var settings = new Consumer.Settings("BENCH", "bench", null, null, isBatch ? 4 : CONCURRENCY, isBatch ? 64 : 1);
            var consumer = new Consumer(nats, settings, inbox);
            consumer.start();
            loop.done.await();
            consumer.stop(Duration.ofSeconds(10));
        }
        System.out.println(Math.round((loop.messages - loop.messages / 5) * 1e9 / (loop.ended - loop.begun)));
        System.exit(0);
    }

    /** A message, a transaction: its key, and, if that is new, its effect. */
    private Void bare(Connection nats, DataSource pool) throws Exception {
        var source = nats.getConsumerContext("BENCH", "bench");
        while (done.getCount() > 0) {
            var message = source.next(1000);
            if (message == null) {
                continue;
            }
            try (var connection = pool.getConnection()) {
                try (var key = connection.prepareStatement("INSERT INTO handled (key) VALUES (?) ON CONFLICT DO NOTHING")) {
                    key.setString(1, message.getHeaders().getFirst("Idempotency-Key"));
                    if (key.executeUpdate() == 1) {
                        effect(connection, message.getData());
                    }
                }
                connection.commit();
            }
            message.ack();
        }
        return null;
    }

    private void effect(java.sql.Connection connection, byte[] payload) throws java.sql.SQLException {
        try (var insert = connection.prepareStatement("INSERT INTO effect (customer, cents) VALUES (?, 100)")) {
            insert.setLong(1, Long.parseLong(new String(payload, StandardCharsets.UTF_8)));
            insert.executeUpdate();
        }
        int count = handled.incrementAndGet();
        if (count == messages / 5) {
            begun = System.nanoTime();
        } else if (count == messages) {
            ended = System.nanoTime();
            done.countDown();
        }
    }
}
