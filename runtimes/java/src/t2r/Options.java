package t2r;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;

/** How a graph is opened. A new one has the library's defaults. */
public final class Options {
    private static final Fields<Options> FIELDS = new Fields<Options>(Native.OPTIONS, Native.OPTIONS_DEFAULTS)
            .small("threads", made -> made.threads, (made, value) -> made.threads = value)
            .small("companions", made -> made.companions ? 1 : 0, (made, value) -> made.companions = value != 0)
            .whole("max_state_bytes", made -> made.maxStateBytes, (made, value) -> made.maxStateBytes = value);

    /** Inside an operator; 0: one a core. */
    public int threads;
    /** Whether the prefill, generation and beam graphs that lie beside are used. */
    public boolean companions;
    /** What a graph may ask for, at batch 1. */
    public long maxStateBytes;

    public Options() {
        FIELDS.reset(this);
    }

    MemorySegment given(Arena arena) {
        return FIELDS.given(this, arena);
    }
}
