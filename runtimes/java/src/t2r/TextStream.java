package t2r;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_LONG;
import static t2r.Native.check;

import java.lang.foreign.MemorySegment;

/** Text as tokens come, never with half a character in it. It outlives its tokenizer. */
public final class TextStream extends Handle {
    TextStream(MemorySegment handle) {
        super(handle, "stream", Native.CLOSE_STREAM);
    }

    /** What this token completes; perhaps nothing. */
    public String feed(long token) {
        return use(arena -> {
            MemorySegment text = arena.allocate(ADDRESS), size = arena.allocate(JAVA_LONG);
            check((int) Native.FEED.invokeExact(handle, token, text, size));
            return Native.text(text.get(ADDRESS, 0), size.get(JAVA_LONG, 0));
        });
    }

    /** What was still waiting for the rest of a character. */
    public String end() {
        return use(arena -> {
            MemorySegment text = arena.allocate(ADDRESS), size = arena.allocate(JAVA_LONG);
            check((int) Native.END_STREAM.invokeExact(handle, text, size));
            return Native.text(text.get(ADDRESS, 0), size.get(JAVA_LONG, 0));
        });
    }
}
