package t2r;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_LONG;
import static t2r.Native.SAMPLING;
import static t2r.Native.at;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;

/** How tokens are chosen. A new one has the library's defaults. */
public final class Sampling {
    private static final Fields<Sampling> FIELDS = new Fields<Sampling>(Native.SAMPLING, Native.SAMPLING_DEFAULTS)
            .real("temperature", made -> made.temperature, (made, value) -> made.temperature = value)
            .whole("top_k", made -> made.topK, (made, value) -> made.topK = value)
            .real("top_p", made -> made.topP, (made, value) -> made.topP = value)
            .real("min_p", made -> made.minP, (made, value) -> made.minP = value)
            .real("repetition_penalty", made -> made.repetitionPenalty, (made, value) -> made.repetitionPenalty = value)
            .whole("no_repeat_ngram", made -> made.noRepeatNgram, (made, value) -> made.noRepeatNgram = value)
            .whole("seed", made -> made.seed, (made, value) -> made.seed = value);

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
        FIELDS.reset(this);
    }

    /** The likeliest token each time. */
    public static Sampling greedy() {
        Sampling made = new Sampling();
        made.temperature = 0;
        return made;
    }

    MemorySegment given(Arena arena) {
        MemorySegment made = FIELDS.given(this, arena);
        if (stopTokens != null) {
            made.set(ADDRESS, at(SAMPLING, "stop_tokens"), Native.numbers(arena, stopTokens));
            made.set(JAVA_LONG, at(SAMPLING, "stop_count"), stopTokens.length);
        }
        return made;
    }
}
