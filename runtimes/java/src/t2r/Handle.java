package t2r;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.invoke.MethodHandle;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * A native handle that is opened and closed. It is used by one thread at a time: concurrent use is an error, and so is use
 * after {@link #close}.
 */
abstract sealed class Handle implements AutoCloseable permits Decoder, Tokenizer, TextStream {
    final MemorySegment handle;
    private final String name;
    private final MethodHandle close;
    private final AtomicBoolean busy = new AtomicBoolean();

    Handle(MemorySegment handle, String name, MethodHandle close) {
        this.handle = handle;
        this.name = name;
        this.close = close;
    }

    /** A call, and the copying of its results. */
    interface Call<T> {
        T run(Arena arena) throws Throwable;
    }

    /** Makes a call; fails if another one is running. */
    final <T> T use(Call<T> call) {
        if (!busy.compareAndSet(false, true)) {
            throw new T2rException(Kind.STATE, "expected one call at a time in a " + name
                    + "; received another, from a second thread or a callback; give each thread one of its own");
        }
        try {
            return make(call);
        } finally {
            busy.set(false);
        }
    }

    static <T> T make(Call<T> call) {
        try (Arena arena = Arena.ofConfined()) {
            return call.run(arena);
        } catch (RuntimeException | Error error) {
            throw error;
        } catch (Throwable error) {
            throw new AssertionError(error); // a method handle's type differs from its function
        }
    }

    @Override
    public final void close() {
        use(arena -> {
            Native.check((int) close.invokeExact(handle));
            return null;
        });
    }
}
