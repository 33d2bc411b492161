package t2r;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.invoke.MethodHandle;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * What is opened and closed. It is of one thread at a time: another in it at once is an error there, and so is whatever is
 * done with one that was closed.
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

    /** A call, and the copying of what it hands out. */
    interface Call<T> {
        T run(Arena arena) throws Throwable;
    }

    /** Makes a call while no other thread is in one. */
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
            throw new AssertionError(error); // a method handle of another type than its function
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
