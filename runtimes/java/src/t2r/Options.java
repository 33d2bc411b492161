package t2r;

import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;
import static t2r.Native.OPTIONS;
import static t2r.Native.at;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;

/** How a graph is opened. A new one has the library's defaults. */
public final class Options {
    /** Inside an operator; 0: one a core. */
    public int threads;
    /** Whether the prefill, generation and beam graphs that lie beside are used. */
    public boolean companions;
    /** What a graph may ask for, at batch 1. */
    public long maxStateBytes;

    public Options() {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment made = Native.defaults(Native.OPTIONS_DEFAULTS, arena);
            threads = made.get(JAVA_INT, at(OPTIONS, "threads"));
            companions = made.get(JAVA_INT, at(OPTIONS, "companions")) != 0;
            maxStateBytes = made.get(JAVA_LONG, at(OPTIONS, "max_state_bytes"));
        }
    }

    MemorySegment given(Arena arena) {
        MemorySegment made = Native.defaults(Native.OPTIONS_DEFAULTS, arena);
        made.set(JAVA_INT, at(OPTIONS, "threads"), threads);
        made.set(JAVA_INT, at(OPTIONS, "companions"), companions ? 1 : 0);
        made.set(JAVA_LONG, at(OPTIONS, "max_state_bytes"), maxStateBytes);
        return made;
    }
}
