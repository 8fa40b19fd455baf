package oncebox;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.sql.Connection;
import java.sql.SQLException;
import java.util.Set;

/**
 * The connection as its handler sees it: it cannot be committed, and is of no use after the
 * handler's end.
 */
final class Fence {
    private static final Set<String> ENDS = Set.of("commit", "setAutoCommit", "abort");
    private final Connection inner;
    private final Connection outer;
    private volatile boolean hasEnded;

    Fence(Connection inner) {
        this.inner = inner;
        Class<?>[] kinds = {Connection.class};
        outer = (Connection) Proxy.newProxyInstance(Fence.class.getClassLoader(), kinds, (proxy, method, given) -> call(method, given));
    }

    Connection connection() {
        return outer;
    }

    /** From now on, threads that the handler has left behind get errors. */
    void end() {
        hasEnded = true;
    }

    private Object call(Method method, Object[] given) throws Throwable {
        String name = method.getName();
        if (name.equals("close")) {
            return null;   // The inbox closes it, and a try block of the handler's does no harm.
        }
        if (hasEnded) {
            throw new SQLException("the handler has ended: what it leaves behind cannot write any more");
        }
        if (ENDS.contains(name) || name.equals("rollback") && given == null) {
            throw new SQLException("the inbox ends a handler's transaction: return to commit, throw to roll back");
        }
        try {
            return method.invoke(inner, given);
        } catch (InvocationTargetException error) {
            throw error.getCause();
        }
    }
}
