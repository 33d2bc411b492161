package t2r;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;

/** Receives the messages of ONNX Runtime, from any thread, one at a time. It must not use this module. */
@FunctionalInterface
public interface Log {
    /** How severe a message is. */
    enum Level {
        VERBOSE,
        INFO,
        WARNING,
        ERROR,
        FATAL
    }

    void log(Level level, String message);

    /** Passes messages of this level or above to log, of graphs opened from now on. An exception in it is dropped. */
    static void set(Level level, Log log) {
        Receiver.exchange(level, log);
    }

    /** Drops messages again. The log is not called after this returns. */
    static void clear() {
        Receiver.exchange(Level.WARNING, null);
    }
}

/** A log passed through C. */
final class Receiver {
    private static Arena kept; // of the function that libt2r calls

    private final Log log;

    private Receiver(Log log) {
        this.log = log;
    }

    static synchronized void exchange(Log.Level level, Log log) {
        Arena shared = Arena.ofShared();
        try {
            Handle.make(arena -> {
                MethodType type = MethodType.methodType(void.class, int.class, MemorySegment.class, MemorySegment.class);
                MethodHandle method = MethodHandles.lookup().findVirtual(Receiver.class, "received", type);
                MemorySegment called = log == null
                        ? MemorySegment.NULL
                        : Native.callback(method.bindTo(new Receiver(log)), Declarations.LOG, shared);
                Native.check((int) Declarations.SET_LOG.invokeExact(called, MemorySegment.NULL, level.ordinal()));
                return null;
            });
        } catch (RuntimeException error) {
            shared.close();
            throw error;
        }
        if (kept != null) {
            kept.close(); // the log before this is called no more
        }
        kept = shared;
    }

    void received(int level, MemorySegment message, MemorySegment user) {
        try {
            log.log(Log.Level.values()[level], Native.text(message));
        } catch (Throwable dropped) {
            // it must not unwind through C
        }
    }
}
