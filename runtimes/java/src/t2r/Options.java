package t2r;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;

/** How a graph is opened. What is null is the library's default. */
public final class Options {
    private static final Fields<Options> FIELDS = new Fields<Options>(Native.OPTIONS)
            .small("threads", made -> made.threads)
            .small("companions", made -> made.companions == null ? null : Integer.valueOf(made.companions ? 1 : 0))
            .whole("max_state_bytes", made -> made.maxStateBytes);

    /** Inside an operator; 0: one a core. */
    public Integer threads;
    /** Whether the prefill and generation graphs that lie beside are used. */
    public Boolean companions;
    /** What a graph may ask for, at batch 1. */
    public Long maxStateBytes;

    /** All null. */
    public Options() {}

    MemorySegment given(Arena arena) throws Throwable {
        return FIELDS.given(this, arena, (made, size) -> (int) Native.OPTIONS_DEFAULTS.invokeExact(made, size));
    }
}
