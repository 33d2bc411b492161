package t2r;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_LONG;
import static t2r.Declarations.OPTIONS;
import static t2r.Native.at;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.List;

/** How a graph is opened. null means the library's default. */
public final class Options {
    private static final Fields<Options> FIELDS = new Fields<Options>(Declarations.OPTIONS)
            .small("threads", made -> made.threads)
            .small("companions", made -> made.companions == null ? null : Integer.valueOf(made.companions ? 1 : 0))
            .whole("max_state_bytes", made -> made.maxStateBytes)
            .whole("max_source", made -> made.maxSource);

    /** Threads in an operator; 0: those of {@link #shareThreads}, else one per core. */
    public Integer threads;
    /** Whether to use the prefill graph beside the graph. */
    public Boolean companions;
    /** Limit of a graph's state bytes, at batch 1. */
    public Long maxStateBytes;
    /** Maximum tokens of a translator's source, besides the graph's own limit. */
    public Long maxSource;
    /** ONNX Runtime's session options, keys and values alternating. */
    public List<String> config = List.of();
    /**
     * An execution provider, by its name in ONNX Runtime or its library's path, then its options as in config; empty: the
     * CPU. It runs all nodes, unless config has "session.disable_cpu_ep_fallback", "0".
     */
    public List<String> provider = List.of();

    /** The library's defaults. */
    public Options() {}

    /**
     * Shares this number of threads among all graphs opened without their own; 0: one per core. Call before the first graph
     * is opened.
     */
    public static void shareThreads(int threads) {
        Handle.make(arena -> {
            Native.check((int) Declarations.SHARE_THREADS.invokeExact(threads));
            return null;
        });
    }

    MemorySegment given(Arena arena) throws Throwable {
        MemorySegment given =
                FIELDS.given(this, arena, (made, size) -> (int) Declarations.DEFAULTS.invokeExact(made, size));
        given.set(ADDRESS, at(OPTIONS, "config"), Native.words(arena, config));
        given.set(JAVA_LONG, at(OPTIONS, "config_count"), config.size());
        given.set(ADDRESS, at(OPTIONS, "provider"), Native.words(arena, provider));
        given.set(JAVA_LONG, at(OPTIONS, "provider_count"), provider.size());
        return given;
    }
}
