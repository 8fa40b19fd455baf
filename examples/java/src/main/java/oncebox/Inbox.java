package oncebox;

import java.sql.SQLException;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReadWriteLock;
import java.util.concurrent.locks.ReentrantReadWriteLock;
import javax.sql.DataSource;
import oncebox.Handler.Dead;
import oncebox.Handler.RetryAfter;
import oncebox.Transactions.Ended;
import oncebox.Transactions.How;

/**
 * Runs a handler once for each key, over the functions of docs/consuming.md, "In other languages".
 */
public final class Inbox implements Runner {
    private static final int CONFLICTS_MAX = 5;
    private static final int REASON_MAX = 1000;
    /** Of a name that occurs more than once, an array. */
    private static final String HEADERS = "(SELECT coalesce(jsonb_object_agg(h.name, h.value), '{}') FROM (SELECT p.name, "
            + "CASE count(*) WHEN 1 THEN to_jsonb(min(p.value)) ELSE jsonb_agg(p.value ORDER BY p.n) END AS value "
            + "FROM unnest(?::text[], ?::text[]) WITH ORDINALITY AS p (name, value, n) GROUP BY p.name) AS h)";
    private static final String PLACE = "tenant => ?, stream => ?, stream_sequence => ?, stored_at => ?";

    /**
     * @param pause before the second run of a message; it doubles with each failure, up to the
     *     longest
     * @param limit how long a handler may take; its connection is closed then
     */
    public record Settings(String scope, int attemptsMax, Duration pause, Duration pauseMax, Duration limit) {
        public static Settings of(String scope) {
            return new Settings(scope, 20, Duration.ofSeconds(1), Duration.ofMinutes(5), Duration.ofMinutes(1));
        }
    }

    private final DataSource pool;
    private final Settings settings;
    private final Transactions transactions;
    /** A message that is run alone has the other half. */
    private final ReadWriteLock together = new ReentrantReadWriteLock();

    public Inbox(DataSource pool, Settings settings, Handler handler) {
        this.pool = pool;
        this.settings = settings;
        transactions = new Transactions(pool, settings, handler);
    }

    @Override
    public void register() throws SQLException {
        Sql.committed(pool, "oncebox.register_scope(?, retention => interval '30 days')", settings.scope);
    }

    /** How long everything around one run of this many messages may take. */
    Duration longest(int messages) {
        return settings.limit.multipliedBy(messages).plusSeconds(10);
    }

    @Override
    public Duration run(Message m) throws SQLException, InterruptedException {
        if (m.key() == null) {
            return bury(m, m.refusal(), null);
        }
        boolean isBegun = m.deliveries() > 1;
        String begun = isBegun ? begin(m, false) : "run";
        if (begun.equals("alone")) {
            if (!together.writeLock().tryLock(longest(1).toMillis(), TimeUnit.MILLISECONDS)) {
                return settings.pause;
            }
            try {
                begun = begin(m, true);
                return begun.equals("run") ? runBegun(m, true) : refused(m, begun);
            } finally {
                together.writeLock().unlock();
            }
        }
        if (!begun.equals("run")) {
            return refused(m, begun);
        }
        together.readLock().lock();
        try {
            return runBegun(m, isBegun);
        } finally {
            together.readLock().unlock();
        }
    }

    /**
     * Records that a message which was delivered before is run again, so that one which ends its
     * process is found.
     */
    private String begin(Message m, boolean isAlone) throws SQLException {
        try {
            return Sql.committed(pool, "oncebox.begin_attempt(?, ?, " + PLACE + ", subject => ?, attempts_max => ?, is_alone => ?)",
                    settings.scope, m.key(), m.tenant(), m.stream(), m.sequence(), m.storedAt(), m.subject(),
                    (long) settings.attemptsMax, isAlone);
        } catch (SQLException error) {
            if ("OB002".equals(error.getSQLState())) {
                return "run";   // The claim refuses this key as well, and says why.
            }
            throw error;
        }
    }

    private Duration refused(Message m, String answer) throws SQLException {
        if (answer.equals("dead")) {
            return bury(m, "delivery limit of " + settings.attemptsMax + " reached: its last runs left no trace, as if they had ended their process", null);
        }
        if (answer.equals("alone")) {
            return settings.pause;
        }
        String left = Sql.committed(pool, "oncebox.pause_left(?, ?, " + PLACE + ")", settings.scope, m.key(), m.tenant(),
                m.stream(), m.sequence(), m.storedAt());
        return left == null ? Duration.ZERO : seconds(Double.parseDouble(left));
    }

    /** Runs a message that may be run; again at once if it has lost a race. */
    private Duration runBegun(Message m, boolean isBegun) throws SQLException {
        boolean isAttempt = false;
        try {
            for (int round = 1;; round++) {
                Ended ended = transactions.single(m);
                switch (ended.how()) {
                    case AWAY -> throw new SQLException(reason(ended.error()), ended.error());
                    case LATER -> {
                        return settings.pause;
                    }
                    case DONE -> {
                        isAttempt = true;
                        return forget(m, isBegun);
                    }
                    default -> { }
                }
                String status = ended.xid() == null ? "aborted" : Sql.status(pool, ended.xid(), settings.scope, m.tenant(), m.key());
                if (!"aborted".equals(status) && !"committed".equals(status)) {
                    return settings.pause;   // Nobody knows yet: its next claim does.
                }
                boolean isConflict = List.of("40001", "40P01").contains(state(ended.error()));
                if (status.equals("aborted") && isConflict && round < CONFLICTS_MAX) {
                    continue;
                }
                isAttempt = true;
                if (status.equals("aborted")) {
                    return failed(m, ended.error());
                }
                // The answer to our COMMIT was lost, or the handler has sent one by itself.
                return ended.how() == How.LOST_COMMIT ? forget(m, isBegun)
                        : bury(m, "the handler sent COMMIT by itself, which stays, and then failed: " + reason(ended.error()), ended.xid());
            }
        } finally {
            if (!isAttempt && isBegun) {
                cancel(m);
            }
        }
    }

    /** A message that was tried before has ended. */
    Duration forget(Message m, boolean isBegun) throws SQLException {
        if (isBegun) {
            Sql.committed(pool, "oncebox.forget_attempts(?, ?, tenant => ?)", settings.scope, m.key(), m.tenant());
        }
        return null;
    }

    /** Counts an attempt, and gives the message up after the last. */
    private Duration failed(Message m, Throwable error) throws SQLException {
        if (error instanceof Dead || "OB002".equals(state(error))) {
            return bury(m, reason(error), null);
        }
        double first = settings.pause.toMillis() / 1000.0 * ThreadLocalRandom.current().nextDouble(0.5, 1);
        double longest = settings.pauseMax.toMillis() / 1000.0;
        if (error instanceof RetryAfter retry) {
            first = longest = Math.max(0, retry.pause.toMillis() / 1000.0);
        }
        String reason = reason(error);
        long count = count(m, reason, first, longest);
        if (count >= settings.attemptsMax) {
            return bury(m, "delivery limit of " + settings.attemptsMax + " reached: " + reason, null);
        }
        return seconds(Math.min(first * Math.pow(2, Math.min(count - 1, 30)), longest));
    }

    /** Counts a failed attempt, and shows it to operators; how many have failed. */
    long count(Message m, String reason, double first, double longest) throws SQLException {
        return Long.parseLong(Sql.committed(pool, "oncebox.attempt_failed(?, ?, " + PLACE + ", reason => ?, subject => ?,"
                + " pause => ?, pause_max => ?)", settings.scope, m.key(), m.tenant(), m.stream(), m.sequence(), m.storedAt(),
                reason, m.subject(), first, longest));
    }

    /** A pause behind so many attempts, of which half is chance. */
    static Duration pause(Settings settings, int attempts) {
        double first = settings.pause.toMillis() / 1000.0 * ThreadLocalRandom.current().nextDouble(0.5, 1);
        return seconds(Math.min(first * Math.pow(2, Math.min(attempts - 1, 30)), settings.pauseMax.toMillis() / 1000.0));
    }

    /**
     * Records a dead letter, unless a copy was handled meanwhile. One without a valid key has none
     * there.
     */
    Duration bury(Message m, String reason, String committedBy) throws SQLException {
        boolean isKeyless = m.key() == null;
        String call = "oncebox.bury(?, ?::text, ?, reason => ?, subject => ?, headers => " + HEADERS
                + ", " + PLACE + ", deliveries => ?, committed_by => ?::text::xid8)";
        var pairs = m.headers().entrySet().stream().flatMap(
                header -> header.getValue().stream().map(value -> new String[] {header.getKey(), value})).toList();
        String[] names = pairs.stream().map(pair -> pair[0]).toArray(String[]::new);
        String[] values = pairs.stream().map(pair -> pair[1]).toArray(String[]::new);
        try {
            String answer = Sql.committed(pool, call, settings.scope, m.key(), m.payload(), reason, m.subject(), names, values,
                    m.tenant(), m.stream(), m.sequence(), m.storedAt(), m.deliveries(), committedBy);
            return answer.equals("in_flight") ? settings.pause : null;
        } catch (SQLException error) {
            if (isKeyless || !"OB002".equals(error.getSQLState())) {
                throw error;
            }
            return bury(m.withoutKey(), reason, null);
        }
    }

    private void cancel(Message m) {
        try {
            Sql.committed(pool, "oncebox.cancel_attempt(?, ?, " + PLACE + ")", settings.scope, m.key(), m.tenant(), m.stream(),
                    m.sequence(), m.storedAt());
        } catch (SQLException away) {
            // Then it counts as a run that left no trace, and costs the message some time.
        }
    }

    @Override
    public List<Message> runBatch(List<Message> messages) {
        together.readLock().lock();
        try {
            return transactions.batch(messages, longest(messages.size()));
        } finally {
            together.readLock().unlock();
        }
    }

    private static Duration seconds(double seconds) {
        return Duration.ofNanos((long) (seconds * 1e9));
    }

    /** The SQLSTATE of an error, also if a framework has wrapped it; else empty. */
    static String state(Throwable error) {
        Throwable at = error;
        for (int depth = 0; at != null && depth < 10; depth++, at = at.getCause()) {
            if (at instanceof SQLException refused && refused.getSQLState() != null) {
                return refused.getSQLState();
            }
        }
        return "";
    }

    /** Some errors cannot say why they happened. */
    static String reason(Throwable error) {
        String text;
        try {
            boolean isPlain = error instanceof Dead || error instanceof RetryAfter;
            text = isPlain ? error.getMessage() : error.toString();
        } catch (RuntimeException | Error odd) {
            text = error.getClass().getName() + ", which has no text";
        }
        text = String.valueOf(text).replace('\0', ' ');
        return text.length() > REASON_MAX ? text.substring(0, REASON_MAX) : text;
    }
}
