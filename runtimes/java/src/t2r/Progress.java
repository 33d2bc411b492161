package t2r;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.util.function.LongPredicate;

/** A callback passed through C. An exception must not unwind through C. */
final class Progress {
    private final LongPredicate callback;
    private Throwable thrown;

    Progress(LongPredicate callback) {
        this.callback = callback;
    }

    MemorySegment stub(Arena arena) throws ReflectiveOperationException {
        MethodType type = MethodType.methodType(int.class, long.class, MemorySegment.class);
        MethodHandle method = MethodHandles.lookup().findVirtual(Progress.class, "next", type);
        return Native.callback(method.bindTo(this), Declarations.CALLBACK, arena);
    }

    int next(long token, MemorySegment user) {
        try {
            return callback.test(token) ? 1 : 0;
        } catch (Throwable error) {
            thrown = error;
            return 0;
        }
    }

    /** Rethrows the callback's exception, which is unchecked: it declares no others. */
    void rethrow() {
        if (thrown instanceof Error error) {
            throw error;
        }
        if (thrown != null) {
            throw (RuntimeException) thrown;
        }
    }
}
