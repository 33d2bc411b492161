package t2r;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_LONG;
import static t2r.Native.OPTIONS;
import static t2r.Native.at;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.List;

/** How a graph is opened. What is null is the library's default. */
public final class Options {
    private static final Fields<Options> FIELDS = new Fields<Options>(Native.OPTIONS)
            .small("threads", made -> made.threads)
            .small("companions", made -> made.companions == null ? null : Integer.valueOf(made.companions ? 1 : 0))
            .whole("max_state_bytes", made -> made.maxStateBytes);

    /** Inside an operator; 0: those of {@link #shareThreads}, else one a core. */
    public Integer threads;
    /** Whether the prefill and generation graphs that lie beside are used. */
    public Boolean companions;
    /** What a graph may ask for, at batch 1. */
    public Long maxStateBytes;
    /** ONNX Runtime's own options of a session, each a key and behind it its value. */
    public List<String> config = List.of();
    /**
     * An execution provider, as ONNX Runtime names it or by its library's path, then its options as in config; nothing: the
     * CPU. It runs all nodes, unless config has "session.disable_cpu_ep_fallback", "0".
     */
    public List<String> provider = List.of();

    /** The library's defaults. */
    public Options() {}

    /**
     * One set of threads for all graphs but those that are opened with a number of their own: as many; 0: one a core. Before
     * the first is opened.
     */
    public static void shareThreads(int threads) {
        Handle.make(arena -> {
            Native.check((int) Native.SHARE_THREADS.invokeExact(threads));
            return null;
        });
    }

    MemorySegment given(Arena arena) throws Throwable {
        MemorySegment given =
                FIELDS.given(this, arena, (made, size) -> (int) Native.OPTIONS_DEFAULTS.invokeExact(made, size));
        given.set(ADDRESS, at(OPTIONS, "config"), Native.words(arena, config));
        given.set(JAVA_LONG, at(OPTIONS, "config_count"), config.size());
        given.set(ADDRESS, at(OPTIONS, "provider"), Native.words(arena, provider));
        given.set(JAVA_LONG, at(OPTIONS, "provider_count"), provider.size());
        return given;
    }
}
