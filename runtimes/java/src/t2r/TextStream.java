package t2r;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;
import static t2r.Native.check;

import java.lang.foreign.MemorySegment;
import java.util.List;

/** Streams text token by token, never half a character. It may outlive its tokenizer. */
public final class TextStream extends Handle {
    TextStream(MemorySegment handle) {
        super(handle, "stream", Declarations.CLOSE_STREAM);
    }

    /** From here on, ends the text before the first of these that occurs. A possible beginning of one is held back. */
    public void stopAt(String... texts) {
        use(arena -> {
            check((int) Declarations.STOP_AT.invokeExact(handle, Native.words(arena, List.of(texts)), (long) texts.length));
            return null;
        });
    }

    /** Whether one of them has occurred; later tokens give no text. */
    public boolean stopped() {
        return use(arena -> {
            MemorySegment found = arena.allocate(JAVA_INT);
            check((int) Declarations.STOPPED.invokeExact(handle, found));
            return found.get(JAVA_INT, 0) != 0;
        });
    }

    /** The text that this token completes, perhaps empty. */
    public String feed(long token) {
        return use(arena -> {
            MemorySegment text = arena.allocate(ADDRESS), size = arena.allocate(JAVA_LONG);
            check((int) Declarations.FEED.invokeExact(handle, token, text, size));
            return Native.text(text.get(ADDRESS, 0), size.get(JAVA_LONG, 0));
        });
    }

    /** The text held back for the rest of a character. */
    public String end() {
        return use(arena -> {
            MemorySegment text = arena.allocate(ADDRESS), size = arena.allocate(JAVA_LONG);
            check((int) Declarations.END_STREAM.invokeExact(handle, text, size));
            return Native.text(text.get(ADDRESS, 0), size.get(JAVA_LONG, 0));
        });
    }
}
