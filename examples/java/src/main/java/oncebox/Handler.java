package oncebox;

import java.sql.Connection;
import java.time.Duration;

/** What you write: it gets the transaction that its message's key is claimed in. */
@FunctionalInterface
public interface Handler {
    /**
     * Writes through this connection, and leaves COMMIT and ROLLBACK to the inbox: return to
     * commit, throw to roll back. Recover from an error of PostgreSQL with a savepoint. It may run
     * again as long as it has not returned. Any exception but these below is an attempt that
     * failed.
     */
    Outcome handle(Connection connection, Message message) throws Exception;

    /**
     * How a handler is done; its writes are committed with it, and copies are answered with its
     * JSON.
     */
    record Outcome(String json, boolean isRejected) {
        public static Outcome done() {
            return new Outcome(null, false);
        }

        public static Outcome done(String json) {
            return new Outcome(json, false);
        }

        /** A no, which is an answer and no failure: the writes stay. */
        public static Outcome reject(String json) {
            return new Outcome(json, true);
        }
    }

    /** Nobody can handle this message: it becomes a dead letter at once. */
    final class Dead extends Exception {
        private static final long serialVersionUID = 1;

        public Dead(String reason) {
            super(reason);
        }
    }

    /** Run it again after a pause of this length; that is an attempt. */
    final class RetryAfter extends Exception {
        private static final long serialVersionUID = 1;
        final transient Duration pause;

        public RetryAfter(Duration pause) {
            super("asked for a retry");
            this.pause = pause;
        }
    }
}
