package oncebox;

import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import io.nats.client.Connection;
import io.nats.client.Nats;
import io.nats.client.Options;
import java.net.URI;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.time.Duration;

/** The life of a process that consumes: its pool, its connection to NATS, and its end. */
final class Service {
    private static final Duration GRACE = Duration.ofSeconds(25);
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
        return new HikariDataSource(config);
    }

    static Connection nats(String url) throws Exception {
        return Nats.connect(new Options.Builder().server(url).maxReconnects(-1).build());
    }

    /** Consumes until SIGTERM or SIGINT, then drains. */
    static void run(Consumer consumer) throws Exception {
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            boolean isDrained = false;
            try {
                isDrained = consumer.stop(GRACE);
            } catch (InterruptedException stopped) {
                Thread.currentThread().interrupt();
            }
            Runtime.getRuntime().halt(isDrained ? 0 : 1);
        }));
        consumer.start();
        consumer.await();
    }
}
