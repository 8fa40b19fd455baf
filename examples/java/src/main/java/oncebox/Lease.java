package oncebox;

import java.sql.SQLException;
import java.time.Duration;
import java.util.Set;
import java.util.TreeSet;
import java.util.UUID;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executors;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import javax.sql.DataSource;

/**
 * A claim for a time, through which a handler has effects outside of the database: docs/effects.md.
 */
public final class Lease {
    private static final ExecutorService CALLS = Executors.newCachedThreadPool(task -> {
        Thread thread = new Thread(task, "call");
        thread.setDaemon(true);
        return thread;
    });

    /** A call of a provider, with the idempotency key of this effect. Returns JSON. */
    @FunctionalInterface
    public interface Call {
        String with(String key) throws Exception;
    }

    /**
     * Asks the provider about an earlier call: JSON if it happened, {@code ABSENT}, or {@code
     * UNKNOWN}.
     */
    @FunctionalInterface
    public interface Question {
        String ABSENT = new String("absent");
        String UNKNOWN = new String("unknown");

        String about(String key) throws Exception;
    }

    /** The provider has said no: the effect did not happen, and never will. */
    public static final class Rejected extends Exception {
        private static final long serialVersionUID = 1;

        public Rejected(String reason) {
            super(reason);
        }
    }

    /** It is known that a call had no effect, such as one whose connection was refused. */
    public static final class NotSent extends Exception {
        private static final long serialVersionUID = 1;

        public NotSent(Throwable cause) {
            super(String.valueOf(cause), cause);
        }
    }

    /** Another owner may have the message: nothing more may be done for it. */
    static final class Lost extends Exception {
        private static final long serialVersionUID = 1;
    }

    private final DataSource pool;
    final String scope;
    final Message message;
    final UUID owner = UUID.randomUUID();
    final Duration length;
    long epoch;
    private volatile long renewed = System.nanoTime();
    private volatile boolean isLost;
    /** Effects that may have happened, and all that this run has used. */
    private final Set<String> open = new TreeSet<>();
    private final Set<String> used = new TreeSet<>();

    Lease(DataSource pool, String scope, Message message, Duration length) {
        this.pool = pool;
        this.scope = scope;
        this.message = message;
        this.length = length;
    }

    /** Whether its time is over by our own clock, or somebody else has it. */
    boolean isLost() {
        return isLost || System.nanoTime() - renewed > length.toNanos();
    }

    /** Every third of its time. */
    void renew() {
        long now = System.nanoTime();
        try {
            if (!isLost() && held("oncebox.renew_lease(?, ?, ?, ?, ? * interval '1 ms', tenant => ?)", length.toMillis(), message.tenant())) {
                renewed = now;
            }
        } catch (SQLException away) {
            // The next third tries again, until the time is over.
        }
    }

    /** From now on nothing may be done with it. */
    void end() {
        isLost = true;
    }

    synchronized String open() {
        return String.join(", ", open);
    }

    /** An effect whose provider has one effect and one answer for each key. */
    public String effect(String step, Duration timeout, Call call) throws Exception {
        return effect(step, timeout, Duration.ZERO, call, null);
    }

    /**
     * Has an effect, unless it happened before; returns its result as it is remembered. Use a step
     * once in a run, and let all errors but {@link Rejected} through.
     *
     * @param settlesWithin after this time a call that the provider does not know will never arrive
     */
    public String effect(String step, Duration timeout, Duration settlesWithin, Call call, Question question) throws Exception {
        String key = message.key() + ":" + step;
        synchronized (this) {
            if (!used.add(step)) {
                throw new IllegalStateException("effect " + step + " was used already: each effect of a run needs a step of its own");
            }
            open.add(step);   // Also if an answer of PostgreSQL's is lost.
        }
        String[] begun = Sql.committedRow(pool, "answer, result, reason, extract(epoch FROM age)::text",
                "oncebox.begin_effect(?, ?, ?, ?, lease => ? * interval '1 ms', step => ?, tenant => ?)", scope, message.key(), owner, epoch,
                length.toMillis(), step, message.tenant());
        boolean wasOpen = begun[0].equals("open");
        switch (begun[0]) {
            case "done" -> {
                return closed(step, begun[1]);
            }
            case "rejected" -> {
                closed(step, null);
                throw rejected(step, begun[2]);
            }
            case "lost" -> throw lost();
            default -> { }
        }
        if (wasOpen && question != null) {
            String found = ask(step, timeout, question, key);
            if (found == Question.ABSENT && Double.parseDouble(begun[3]) < settlesWithin.toMillis() / 1000.0) {
                String why = "the provider knows nothing of it, but a call settles within " + settlesWithin.toMillis() + " ms";
                throw new Settling(unknown(step, why, null).getMessage(),
                        settlesWithin.minusMillis((long) (1000 * Double.parseDouble(begun[3]))));
            }
            if (found == null || found == Question.UNKNOWN) {
                throw unknown(step, "the provider cannot tell yet", null);
            }
            if (found != Question.ABSENT) {
                return settle(step, "done", found, null);
            }
        }
        if (wasOpen) {
            must("oncebox.begin_effect_again(?, ?, ?, ?, ? * interval '1 ms', ?, tenant => ?)", length.toMillis(), step, message.tenant());
        }
        if (isLost()) {
            throw lost();   // This process may have been suspended: another one may call by now.
        }
        String result;
        try {
            result = within(timeout, () -> call.with(key));
        } catch (Rejected no) {
            settle(step, "rejected", null, no.getMessage());
            throw rejected(step, no.getMessage());
        } catch (NotSent none) {
            if (wasOpen && question == null) {
                throw unknown(step, none.getMessage(), none);   // An earlier call may have happened.
            }
            settle(step, "absent", null, null);
            throw none;
        } catch (Exception error) {
            throw unknown(step, Inbox.reason(error), error);
        }
        return settle(step, "done", result, null);
    }

    private String ask(String step, Duration timeout, Question question, String key) throws Exception {
        try {
            return within(timeout, () -> question.about(key));
        } catch (Exception error) {
            throw unknown(step, Inbox.reason(error), error);
        }
    }

    private String settle(String step, String status, String result, String reason) throws SQLException, Lost {
        must("oncebox.end_effect(?, ?, ?, ?, ? * interval '1 ms', ?, status => ?, result => ?::text::json, reason => ?, tenant => ?)",
                length.toMillis(), step, status, result, reason, message.tenant());
        return closed(step, result);
    }

    private synchronized String closed(String step, String result) {
        open.remove(step);
        return result;
    }

    private void must(String call, Object... more) throws SQLException, Lost {
        if (!held(call, more)) {
            throw lost();
        }
    }

    /** A function that answers false when the lease is lost; each is committed by itself. */
    boolean held(String call, Object... more) throws SQLException {
        Object[] parameters = new Object[4 + more.length];
        System.arraycopy(new Object[] {scope, message.key(), owner, epoch}, 0, parameters, 0, 4);
        System.arraycopy(more, 0, parameters, 4, more.length);
        boolean isHeld = "true".equals(Sql.committed(pool, call, parameters));
        isLost |= !isHeld;
        return isHeld;
    }

    private Lost lost() {
        isLost = true;
        return new Lost();
    }

    /** An earlier call may still arrive for this time: a wait, and no attempt. */
    static final class Settling extends IllegalStateException {
        private static final long serialVersionUID = 1;
        final Duration left;

        Settling(String text, Duration left) {
            super(text);
            this.left = left;
        }
    }

    private static Rejected rejected(String step, String reason) {
        return new Rejected("effect \"" + step + "\" was rejected: " + reason);
    }

    private static Exception unknown(String step, String reason, Throwable cause) {
        return new IllegalStateException("the outcome of effect \"" + step + "\" is unknown: " + reason, cause);
    }

    static <T> T within(Duration limit, java.util.concurrent.Callable<T> work) throws Exception {
        Future<T> running = CALLS.submit(work);
        try {
            return running.get(limit.toMillis(), TimeUnit.MILLISECONDS);
        } catch (ExecutionException failed) {
            throw failed.getCause() instanceof Exception error ? error : failed;
        } catch (TimeoutException late) {
            throw new TimeoutException("no answer within " + limit.toMillis() + " ms");
        } finally {
            running.cancel(true);
        }
    }
}
