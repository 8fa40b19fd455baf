package oncebox;

import java.sql.Array;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import javax.sql.DataSource;

/** Statements of PostgreSQL's over any pool, whether its autocommit is on or off. */
final class Sql {
    /** How long nobody may know how a transaction ended, before its message is put off. */
    private static final Duration UNKNOWN_MAX = Duration.ofSeconds(5);

    private static final int ROLLBACK_MAX_MS = 5000;

    private Sql() {}

    /** One row, of text. */
    static String[] row(Connection connection, String sql, Object... parameters) throws SQLException {
        return rows(connection, sql, parameters).get(0);
    }

    /** The rows of the last of these statements, which go out together. */
    static List<String[]> rows(Connection connection, String sql, Object... parameters) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            for (int place = 0; place < parameters.length; place++) {
                if (parameters[place] instanceof byte[] bytes) {
                    statement.setBytes(place + 1, bytes);
                } else {
                    statement.setObject(place + 1, parameters[place]);
                }
            }
            boolean hasRows = statement.execute();
            while (!hasRows && (statement.getUpdateCount() != -1)) {
                hasRows = statement.getMoreResults();
            }
            List<String[]> rows = new ArrayList<>();
            try (ResultSet found = statement.getResultSet()) {
                while (found.next()) {
                    String[] row = new String[found.getMetaData().getColumnCount()];
                    for (int column = 0; column < row.length; column++) {
                        row[column] = found.getString(column + 1);
                    }
                    rows.add(row);
                }
            }
            return rows;
        }
    }

    static Array array(Connection connection, String type, List<?> values) throws SQLException {
        return connection.createArrayOf(type, values.toArray());
    }

    /**
     * Runs a function in a transaction of its own that is committed, also where autocommit is off,
     * and asks PostgreSQL whether it is: a COMMIT that a framework keeps back is an error here.
     */
    static String[] committedRow(DataSource pool, String columns, String call, Object... parameters) throws SQLException {
        return using(pool, connection -> {
            String[] row = row(connection, "SELECT " + columns + ", pg_current_xact_id()::text FROM " + call, parameters);
            connection.commit();
            String status = row(connection, "SELECT pg_xact_status(?::text::xid8)", row[row.length - 1])[0];
            connection.rollback();
            if (!"committed".equals(status)) {
                throw new SQLException("COMMIT has no effect, the transaction is " + status
                        + ": give the inbox a DataSource of its own, outside of the framework's transactions");
            }
            return row;
        });
    }

    /** The same for a function that returns one value. */
    static String committed(DataSource pool, String call, Object... parameters) throws SQLException {
        return committedRow(pool, "answer::text", call + " AS answer", parameters)[0];
    }

    /**
     * Whether the transaction that claimed a key is "committed" or "aborted"; "in progress" when
     * that is not known in time. The row of the key says so: a server that crashes forgets ids of
     * transactions that it has not written to disk, and gives them to others.
     */
    static String status(DataSource pool, String xid, String scope, String tenant, String key) throws SQLException {
        for (long end = System.nanoTime() + UNKNOWN_MAX.toNanos();; pause()) {
            String status = using(pool, connection -> {
                String found = row(connection, "SELECT CASE WHEN EXISTS (SELECT FROM oncebox.inbox"
                        + " WHERE scope = ? AND tenant = ? AND key = ? AND xmin = ?::text::xid8::xid) THEN 'committed'"
                        + " WHEN pg_xact_status(?::text::xid8) = 'in progress' THEN 'in progress' ELSE 'aborted' END",
                        scope, tenant, key, xid, xid)[0];
                connection.rollback();
                return found;
            });
            if (!"in progress".equals(status) || System.nanoTime() > end) {
                return status;
            }
        }
    }

    interface Work<T> {
        T on(Connection connection) throws SQLException;
    }

    /** Gives a connection to some work, with autocommit off. One that has failed is closed. */
    static <T> T using(DataSource pool, Work<T> work) throws SQLException {
        Connection connection = pool.getConnection();
        boolean isFit = false;
        try {
            boolean wasAutomatic = connection.getAutoCommit();
            connection.setAutoCommit(false);
            T result = work.on(connection);
            connection.setAutoCommit(wasAutomatic);
            isFit = true;
            return result;
        } finally {
            giveBack(connection, isFit);
        }
    }

    /** To its pool; one that is unfit is closed first, so that the pool drops it. */
    static void giveBack(Connection connection, boolean isFit) {
        try {
            if (!isFit) {
                // Its locks go now, and not only when PostgreSQL notices that the connection is
                // gone.
                connection.setNetworkTimeout(Runnable::run, ROLLBACK_MAX_MS);
                connection.rollback();
            }
        } catch (SQLException dead) {
            // PostgreSQL rolls back by itself.
        }
        try {
            if (!isFit) {
                connection.abort(Runnable::run);
            }
            connection.close();
        } catch (SQLException dead) {
            // It is closed already.
        }
    }

    private static void pause() {
        try {
            Thread.sleep(100);
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
        }
    }
}
