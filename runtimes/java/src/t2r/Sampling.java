package t2r;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_DOUBLE;
import static java.lang.foreign.ValueLayout.JAVA_LONG;
import static t2r.Native.SAMPLING;
import static t2r.Native.at;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;

/** How tokens are chosen. A new one has the library's defaults. */
public final class Sampling {
    /** 0: the largest logit, of equals the lowest token. */
    public double temperature;
    /** 0: all. */
    public long topK;
    /** 1: all. */
    public double topP;
    /** 0: all. */
    public double minP;
    /** 1: none. */
    public double repetitionPenalty;
    /** 0: no limit. */
    public long noRepeatNgram;
    /** The same seed gives the same text; -1: a new one for each. */
    public long seed;
    /** The text ends with the first of them; null: the graph's own. */
    public long[] stopTokens;

    public Sampling() {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment made = Native.defaults(Native.SAMPLING_DEFAULTS, arena);
            temperature = made.get(JAVA_DOUBLE, at(SAMPLING, "temperature"));
            topK = made.get(JAVA_LONG, at(SAMPLING, "top_k"));
            topP = made.get(JAVA_DOUBLE, at(SAMPLING, "top_p"));
            minP = made.get(JAVA_DOUBLE, at(SAMPLING, "min_p"));
            repetitionPenalty = made.get(JAVA_DOUBLE, at(SAMPLING, "repetition_penalty"));
            noRepeatNgram = made.get(JAVA_LONG, at(SAMPLING, "no_repeat_ngram"));
            seed = made.get(JAVA_LONG, at(SAMPLING, "seed"));
        }
    }

    /** The likeliest token each time. */
    public static Sampling greedy() {
        Sampling made = new Sampling();
        made.temperature = 0;
        return made;
    }

    MemorySegment given(Arena arena) {
        MemorySegment made = Native.defaults(Native.SAMPLING_DEFAULTS, arena);
        made.set(JAVA_DOUBLE, at(SAMPLING, "temperature"), temperature);
        made.set(JAVA_LONG, at(SAMPLING, "top_k"), topK);
        made.set(JAVA_DOUBLE, at(SAMPLING, "top_p"), topP);
        made.set(JAVA_DOUBLE, at(SAMPLING, "min_p"), minP);
        made.set(JAVA_DOUBLE, at(SAMPLING, "repetition_penalty"), repetitionPenalty);
        made.set(JAVA_LONG, at(SAMPLING, "no_repeat_ngram"), noRepeatNgram);
        made.set(JAVA_LONG, at(SAMPLING, "seed"), seed);
        if (stopTokens != null) {
            made.set(ADDRESS, at(SAMPLING, "stop_tokens"), Native.numbers(arena, stopTokens));
            made.set(JAVA_LONG, at(SAMPLING, "stop_count"), stopTokens.length);
        }
        return made;
    }
}
