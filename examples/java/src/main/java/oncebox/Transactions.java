package oncebox;

import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import javax.sql.DataSource;
import oncebox.Handler.Dead;
import oncebox.Handler.Outcome;
import org.postgresql.PGConnection;

/** The transactions in which a key is claimed, its handler writes and its outcome is stored. */
final class Transactions {
    private static final int REPLY_MAX = 1 << 20;
    /** Settings of a session that the next handler must not meet changed. */
    static final String STATE = "concat_ws(' ', current_user, session_user, current_setting('search_path'),"
            + " current_setting('default_transaction_read_only'), current_setting('TimeZone'))";
    private static final String XID = "coalesce(pg_current_xact_id_if_assigned()::text, 'none')";
    private static final String CLAIM = "SET TRANSACTION DEFERRABLE; SELECT answer, " + XID + ", " + STATE
            + " FROM oncebox.claim(?, ?, ?, tenant => ?)";
    private static final String SETTLE = "SELECT oncebox.settle(?, ?, ?::text::json, tenant => ?, status => ?), " + STATE;
    private static final String CHECK = "SELECT " + XID + ", " + STATE;
    private static final String CLAIM_BATCH = "SELECT place, answer, " + XID + ", " + STATE
            + " FROM oncebox.claim_batch(?, tenants => ?, keys => ?, fingerprints => ?,"
            + " time_limit => ? * interval '1 millisecond')";
    private static final String SETTLE_BATCH = "SELECT oncebox.settle_batch(?, tenants => ?, keys => ?, outcomes => ?,"
            + " statuses => ?)";

    /** How a transaction has ended. AWAY: the handler has not run. */
    enum How { DONE, LATER, FAILED, LOST_COMMIT, AWAY }

    /**
     * @param xid of the transaction that has claimed the key, which a handler may have committed
     */
    record Ended(How how, Throwable error, String xid) {}

    private final DataSource pool;
    private final Inbox.Settings settings;
    private final Handler handler;
    private final ExecutorService threads = Executors.newCachedThreadPool(task -> {
        Thread thread = new Thread(task, "handler");
        thread.setDaemon(true);
        return thread;
    });

    Transactions(DataSource pool, Inbox.Settings settings, Handler handler) {
        this.pool = pool;
        this.settings = settings;
        this.handler = handler;
    }

    /** Claims and handles one message. */
    Ended single(Message m) {
        Connection connection = null;
        String xid = null;
        How how = How.AWAY;
        boolean isFit = false;
        try {
            connection = pool.getConnection();
            boolean wasAutomatic = connection.getAutoCommit();
            connection.setAutoCommit(false);
            String[] claim = Sql.row(connection, CLAIM, settings.scope(), m.key(), m.payload(), m.tenant());
            if (!claim[0].equals("new")) {
                connection.rollback();
                connection.setAutoCommit(wasAutomatic);
                isFit = true;
                return answered(claim[0]);
            }
            xid = claim[1];
            how = How.FAILED;
            String state = settle(connection, m, xid, handle(connection, m));
            how = How.LOST_COMMIT;
            connection.commit();
            how = How.DONE;
            connection.setAutoCommit(wasAutomatic);
            isFit = state.equals(claim[2]);
            return new Ended(How.DONE, null, xid);
        } catch (Exception | Error error) {
            // The claim refuses a key that is none; any other error of it is no fault of the
            // message.
            boolean isKeyless = how == How.AWAY && Inbox.state(error).equals("OB002");
            return new Ended(isKeyless ? How.FAILED : how, error, xid);
        } finally {
            if (connection != null) {
                Sql.giveBack(connection, isFit);
            }
        }
    }

    private static Ended answered(String answer) {
        return switch (answer) {
            case "in_flight" -> new Ended(How.LATER, null, null);
            case "mismatch" -> new Ended(How.FAILED, new Dead("the key was used before with another payload"), null);
            default -> new Ended(How.DONE, null, null);
        };
    }

    /**
     * Stores the outcome, if there is one, in the transaction of the claim; returns the session's
     * state.
     */
    private String settle(Connection connection, Message m, String xid, Outcome outcome) throws Exception {
        check(outcome);
        if (outcome.json() == null && !outcome.isRejected()) {
            return stillIn(connection, xid);
        }
        String status = outcome.isRejected() ? "rejected" : "completed";
        try {
            return Sql.row(connection, SETTLE, settings.scope(), m.key(), outcome.json(), m.tenant(), status)[1];
        } catch (SQLException error) {
            throw switch (Inbox.state(error)) {
                case "OB010" -> ended(error);
                case "22P02", "22P05" -> new Dead("the reply is no JSON: " + Inbox.reason(error));
                default -> error;
            };
        }
    }

    private static void check(Outcome outcome) throws Dead {
        String json = outcome.json();
        if (json != null && json.getBytes(StandardCharsets.UTF_8).length > REPLY_MAX) {
            throw new Dead("the reply has more than 1 MiB: store it in a table, and reply with its id");
        }
    }

    /**
     * Without a reply the claim has stored how the key ended: if this is its transaction, COMMIT is
     * all.
     */
    private static String stillIn(Connection connection, String xid) throws SQLException {
        String[] now = Sql.row(connection, CHECK);
        if (!now[0].equals(xid)) {
            throw ended(null);
        }
        return now[1];
    }

    private static SQLException ended(SQLException cause) {
        return new SQLException("the handler ended the transaction by itself", cause);
    }

    /**
     * Runs the handler within its limit. After it, nothing that it does reaches PostgreSQL any
     * more.
     */
    private Outcome handle(Connection connection, Message m) throws Exception {
        Fence fence = new Fence(connection);
        Future<Outcome> running = threads.submit(() -> handler.handle(fence.connection(), m));
        try {
            return running.get(settings.limit().toMillis(), TimeUnit.MILLISECONDS);
        } catch (ExecutionException failed) {
            if (failed.getCause() instanceof Exception error) {
                throw error;
            }
            throw failed;
        } catch (TimeoutException late) {
            fence.end();
            running.cancel(true);
            connection.unwrap(PGConnection.class).cancelQuery();
            connection.abort(Runnable::run);
            throw new SQLException("the handler took longer than " + settings.limit().toMillis() + " ms", late);
        } finally {
            fence.end();
        }
    }

    /**
     * Handles messages in one transaction; returns those that are to be run by themselves, all if
     * one fails.
     */
    List<Message> batch(List<Message> messages, Duration limit) {
        Connection connection = null;
        boolean isFit = false;
        try {
            connection = pool.getConnection();
            boolean wasAutomatic = connection.getAutoCommit();
            connection.setAutoCommit(false);
            List<String[]> claims = claim(connection, messages, limit);
            List<Message> alone = new ArrayList<>();
            List<Message> replying = new ArrayList<>();
            List<Outcome> replies = new ArrayList<>();
            String state = claims.get(0)[3];
            for (String[] claim : claims) {
                Message m = messages.get(Integer.parseInt(claim[0]) - 1);
                if (claim[1].equals("alone")) {
                    alone.add(m);
                } else if (claim[1].equals("new")) {
                    Outcome outcome = handle(connection, m);
                    check(outcome);
                    // Now: the next handler must not write in a transaction that this one has
                    // begun.
                    state = stillIn(connection, claim[2]);
                    if (outcome.json() != null || outcome.isRejected()) {
                        replying.add(m);
                        replies.add(outcome);
                    }
                    if (!state.equals(claim[3])) {
                        return messages;   // The next one would meet another role, path or time zone.
                    }
                }
            }
            Sql.row(connection, SETTLE_BATCH, settings.scope(), texts(connection, replying, Message::tenant),
                    texts(connection, replying, Message::key), texts(connection, replies, Outcome::json),
                    texts(connection, replies, outcome -> outcome.isRejected() ? "rejected" : "completed"));
            connection.commit();
            connection.setAutoCommit(wasAutomatic);
            isFit = true;
            return alone;
        } catch (Exception | Error error) {
            // Each by itself: the claims say what is committed, and the one that fails fails alone.
            return messages;
        } finally {
            if (connection != null) {
                Sql.giveBack(connection, isFit);
            }
        }
    }

    private List<String[]> claim(Connection connection, List<Message> messages, Duration limit) throws SQLException {
        List<byte[]> fingerprints = messages.stream().map(m -> fingerprint(m.payload())).toList();
        return Sql.rows(connection, CLAIM_BATCH, settings.scope(), texts(connection, messages, Message::tenant),
                texts(connection, messages, Message::key),
                connection.createArrayOf("bytea", fingerprints.toArray(byte[][]::new)), limit.toMillis());
    }

    private static <T> java.sql.Array texts(Connection connection, List<T> of, java.util.function.Function<T, String> text)
            throws SQLException {
        return connection.createArrayOf("text", of.stream().map(text).toArray());
    }

    private static byte[] fingerprint(byte[] payload) {
        try {
            MessageDigest sha = MessageDigest.getInstance("SHA-256");
            sha.update("oncebox payload 1\0".getBytes(StandardCharsets.UTF_8));
            return sha.digest(payload);
        } catch (NoSuchAlgorithmException error) {
            throw new IllegalStateException("every Java has SHA-256", error);
        }
    }
}
