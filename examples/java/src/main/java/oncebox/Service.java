package oncebox;

import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import io.nats.client.Connection;
import io.nats.client.Nats;
import io.nats.client.Options;
import java.io.IOException;
import java.net.URI;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.sql.SQLException;
import java.time.Duration;
import java.util.concurrent.Callable;

/** The life of a process that consumes: its pool, its connection to NATS, and its end. */
final class Service {
    private static final Duration GRACE = Duration.ofSeconds(25);
    private static final Duration CONNECT = Duration.ofSeconds(10);
    private static final Duration START = Duration.ofSeconds(60);
    private static final System.Logger LOG = System.getLogger("oncebox");
    private static final int SOCKET_TIMEOUT_SECONDS = 120;

    private Service() {}

    /**
     * A pool for a URL as of psql,
     * postgres://user:password@host:port/database?application_name=name.
     */
    static HikariDataSource pool(String url, int size, boolean isAutoCommit) {
        URI uri = URI.create(url);
        var config = new HikariConfig();
        config.setJdbcUrl("jdbc:postgresql://" + uri.getHost() + ":" + (uri.getPort() < 0 ? 5432 : uri.getPort()) + uri.getPath());
        String[] owner = uri.getUserInfo() == null ? new String[] {"postgres"} : uri.getUserInfo().split(":", 2);
        config.setUsername(owner[0]);
        config.setPassword(owner.length > 1 ? owner[1] : null);
        for (String option : uri.getRawQuery() == null ? new String[0] : uri.getRawQuery().split("&")) {
            String[] pair = option.split("=", 2);
            String name = pair[0].equals("application_name") ? "ApplicationName" : pair[0];
            config.addDataSourceProperty(name, URLDecoder.decode(pair.length > 1 ? pair[1] : "", StandardCharsets.UTF_8));
        }
        // Longer than any handler: without it a cut network is waited for as long as TCP does.
        config.addDataSourceProperty("socketTimeout", SOCKET_TIMEOUT_SECONDS);
        config.addDataSourceProperty("tcpKeepAlive", true);
        config.setConnectionTimeout(5000);
        config.setMaximumPoolSize(size);
        config.setAutoCommit(isAutoCommit);
        config.setInitializationFailTimeout(-1);   // register() finds out, and tries again.
        return new HikariDataSource(config);
    }

    static Connection nats(String url) throws Exception {
        var options = new Options.Builder().server(url).maxReconnects(-1).connectionTimeout(CONNECT).build();
        return patiently("connect to NATS", () -> Nats.connect(options));
    }

    /** A server that is away for a moment must not end a process that starts; one away for long does. */
    static <T> T patiently(String what, Callable<T> step) throws Exception {
        for (long end = System.nanoTime() + START.toNanos();;) {
            try {
                return step.call();
            } catch (SQLException | IOException away) {
                if (System.nanoTime() > end) {
                    throw away;
                }
                LOG.log(System.Logger.Level.WARNING, "{0} is tried again: {1}", what, Inbox.reason(away));
                Thread.sleep(1000);
            }
        }
    }

    private static Object registered(Runner inbox) throws SQLException {
        inbox.register();
        return null;
    }

    private static Object started(Consumer consumer) throws Exception {
        consumer.start();
        return null;
    }

    /** Registers, then consumes until SIGTERM or SIGINT, then drains. */
    static void run(Runner inbox, Consumer consumer) throws Exception {
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            boolean isDrained = false;
            try {
                isDrained = consumer.stop(GRACE);
            } catch (InterruptedException stopped) {
                Thread.currentThread().interrupt();
            }
            Runtime.getRuntime().halt(isDrained ? 0 : 1);
        }));
        patiently("register the scope", () -> registered(inbox));
        patiently("start the consumer", () -> started(consumer));
        consumer.await();
    }
}
