package oncebox;

import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReadWriteLock;
import java.util.concurrent.locks.ReentrantReadWriteLock;
import javax.sql.DataSource;
import oncebox.Handler.Dead;
import oncebox.Handler.Outcome;
import oncebox.Handler.RetryAfter;

/** Runs handlers with effects outside of the database, under a lease: docs/effects.md, "In SQL". */
public final class Effects implements Runner {
    private static final int CONFLICTS_MAX = 5;

    /**
     * What you write. Between two effects its code must depend on the message and on results alone.
     */
    public interface Leased {
        /** Has no transaction and no connection: its effects go through the lease. */
        Outcome handle(Lease lease, Message message) throws Exception;

        /** The last writes, in the transaction that ends the claim. May run again. */
        default void finish(Connection connection, Message message, Outcome outcome) throws Exception {}
    }

    private final DataSource pool;
    private final Inbox.Settings settings;
    private final Duration length;
    private final Leased handler;
    private final Inbox inbox;
    private final ReadWriteLock together = new ReentrantReadWriteLock();
    private final ScheduledExecutorService renewals = Executors.newScheduledThreadPool(2, task -> {
        Thread thread = new Thread(task, "renewal");
        thread.setDaemon(true);
        return thread;
    });

    public Effects(DataSource pool, Inbox.Settings settings, Duration length, Leased handler) {
        this.pool = pool;
        this.settings = settings;
        this.length = length;
        this.handler = handler;
        // Buries what has no claim.
        inbox = new Inbox(pool, settings, (connection, message) -> {
            throw new IllegalStateException("a scope under a lease has no such handler");
        });
    }

    @Override
    public void register() throws SQLException {
        Sql.committed(pool, "oncebox.register_scope(?, retention => interval '30 days', mode => 'lease')", settings.scope());
    }

    @Override
    public Duration run(Message m) throws SQLException, InterruptedException {
        if (m.key() == null) {
            return inbox.run(m);
        }
        together.readLock().lock();
        try {
            Duration again = run(m, false);
            if (again != ALONE) {
                return again;
            }
        } finally {
            together.readLock().unlock();
        }
        if (!together.writeLock().tryLock(settings.limit().toMillis(), TimeUnit.MILLISECONDS)) {
            return settings.pause();
        }
        try {
            Duration again = run(m, true);
            return again == ALONE ? settings.pause() : again;
        } finally {
            together.writeLock().unlock();
        }
    }

    private static final Duration ALONE = Duration.ofDays(1);

    private Duration run(Message m, boolean isAlone) throws SQLException {
        Lease lease = new Lease(pool, settings.scope(), m, length);
        String[] claim;
        try {
            claim = Sql.committedRow(pool, "answer, epoch::text, attempts::text",
                    "oncebox.claim_leased(?, ?, ?, owner => ?, lease => ? * interval '1 ms', tenant => ?, is_alone => ?)",
                    settings.scope(), m.key(), m.payload(), lease.owner, length.toMillis(), m.tenant(), isAlone);
        } catch (SQLException error) {
            if (!"OB002".equals(error.getSQLState())) {
                throw error;
            }
            return inbox.bury(m, Inbox.reason(error), null);
        }
        switch (claim[0]) {
            case "new" -> { }
            case "in_flight" -> {
                return settings.pause();
            }
            case "alone" -> {
                return ALONE;
            }
            case "mismatch" -> {
                return inbox.bury(m, "the key was used before with another payload", null);
            }
            default -> {
                return inbox.forget(m, m.deliveries() > 1);
            }
        }
        lease.epoch = Long.parseLong(claim[1]);
        long third = length.toMillis() / 3;
        ScheduledFuture<?> renewal = renewals.scheduleAtFixedRate(lease::renew, third, third, TimeUnit.MILLISECONDS);
        try {
            return handle(lease, m, Integer.parseInt(claim[2]));
        } finally {
            renewal.cancel(false);
            lease.end();
        }
    }

    private Duration handle(Lease lease, Message m, int attempts) throws SQLException {
        try {
            Outcome outcome = Lease.within(settings.limit(), () -> handler.handle(lease, m));
            if (!lease.open().isEmpty()) {
                throw new IllegalStateException("the handler went on after an effect");
            }
            for (int round = 1;; round++) {
                try {
                    finish(lease, m, outcome);
                    return inbox.forget(m, m.deliveries() > 1);
                } catch (SQLException error) {
                    boolean isConflict = List.of("40001", "40P01").contains(Inbox.state(error));
                    if (!isConflict || round == CONFLICTS_MAX) {
                        throw error;
                    }
                }
            }
        } catch (Exception error) {
            boolean isOver = error instanceof Lease.Lost || error instanceof LostCommit || Inbox.state(error).equals("OB014");
            // The next claim knows: this run may write nothing more.
            return isOver || lease.isLost() ? settings.pause() : failed(lease, m, attempts, error);
        }
    }

    /** Whether it has happened says the next claim. */
    private static final class LostCommit extends Exception {
        private static final long serialVersionUID = 1;
    }

    /** The last writes and the end of the claim, together or not at all. */
    private void finish(Lease lease, Message m, Outcome outcome) throws Exception {
        Connection connection = pool.getConnection();
        Fence fence = new Fence(connection);
        boolean isFit = false;
        try {
            boolean wasAutomatic = connection.getAutoCommit();
            connection.setAutoCommit(false);
            String xid = Sql.row(connection, "SELECT pg_current_xact_id()::text")[0];
            Lease.within(settings.limit(), () -> {
                handler.finish(fence.connection(), m, outcome);
                return null;
            });
            fence.end();
            if (!xid.equals(Sql.row(connection, "SELECT coalesce(pg_current_xact_id_if_assigned()::text, '')")[0])) {
                boolean isCommitted = "committed".equals(Sql.row(connection, "SELECT pg_xact_status(?::text::xid8)", xid)[0]);
                throw isCommitted ? new Dead("the handler sent COMMIT by itself, which stays, and then failed")
                        : new SQLException("the handler ended the transaction by itself");
            }
            Sql.row(connection, "SELECT oncebox.finish_leased(?, ?, ?, ?, outcome => ?::text::json, status => ?, tenant => ?)",
                    lease.scope, m.key(), lease.owner, lease.epoch, outcome.json(), outcome.isRejected() ? "rejected" : "completed",
                    m.tenant());
            try {
                connection.commit();
            } catch (SQLException error) {
                throw Inbox.state(error).startsWith("08") ? new LostCommit() : error;
            }
            connection.setAutoCommit(wasAutomatic);
            isFit = true;
        } finally {
            fence.end();
            Sql.giveBack(connection, isFit);
        }
    }

    /** Gives the claim back for a pause, or the message up. */
    private Duration failed(Lease lease, Message m, int attempts, Exception error) throws SQLException {
        String reason = Inbox.reason(error);
        boolean isUnknown = !lease.open().isEmpty();
        if (isUnknown && !reason.contains("is unknown")) {
            reason += "; the outcome of effect \"" + lease.open() + "\" is unknown";
        }
        if (error instanceof Lease.Settling early) {
            Duration left = early.left.compareTo(settings.pauseMax()) < 0 ? early.left : settings.pauseMax();
            lease.held("oncebox.release_leased(?, ?, ?, ?, ? * interval '1 ms', ?, is_unknown => true, is_attempt => false, tenant => ?)",
                    left.toMillis(), reason, m.tenant());
            return left;
        }
        boolean isLast = attempts >= settings.attemptsMax();
        if (isLast || error instanceof Dead || error instanceof Lease.Rejected) {
            String why = isLast ? "delivery limit of " + settings.attemptsMax() + " reached: " + reason : reason;
            lease.held("oncebox.bury_leased(?, ?, ?, ?, payload => ?, reason => ?, subject => ?, tenant => ?, stream => ?,"
                    + " stream_sequence => ?, stored_at => ?, deliveries => ?)", m.payload(), why, m.subject(), m.tenant(), m.stream(),
                    m.sequence(), m.storedAt(), m.deliveries());
            return lease.isLost() ? settings.pause() : null;
        }
        Duration pause = error instanceof RetryAfter retry ? retry.pause : Inbox.pause(settings, attempts);
        if (lease.held("oncebox.release_leased(?, ?, ?, ?, ? * interval '1 ms', ?, is_unknown => ?, tenant => ?)", pause.toMillis(), reason,
                isUnknown, m.tenant())) {
            inbox.count(m, reason, pause.toMillis() / 1000.0, pause.toMillis() / 1000.0);
        }
        return pause;
    }
}
