package oncebox;

import java.sql.SQLException;
import java.time.Duration;
import java.util.List;

/** Runs messages to their ends: an inbox in transactions, or one with effects under a lease. */
public interface Runner {
    /** When a process starts: says that the scope exists, and finds a pool whose COMMIT has no effect. */
    void register() throws SQLException;

    /** Null: the message has ended, acknowledge it. Else it must come again after this pause. */
    Duration run(Message message) throws SQLException, InterruptedException;

    /**
     * Runs messages that nobody has tried in one transaction; returns those that need one of their
     * own.
     */
    default List<Message> runBatch(List<Message> messages) {
        return messages;
    }
}
