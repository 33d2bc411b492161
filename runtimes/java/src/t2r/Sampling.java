package t2r;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_LONG;
import static t2r.Declarations.SAMPLING;
import static t2r.Native.at;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;

/** How tokens are chosen. null means the graph's value. */
public final class Sampling {
    private static final Fields<Sampling> FIELDS = new Fields<Sampling>(Declarations.SAMPLING)
            .real("temperature", made -> made.temperature)
            .whole("top_k", made -> made.topK)
            .real("top_p", made -> made.topP)
            .real("min_p", made -> made.minP)
            .real("repetition_penalty", made -> made.repetitionPenalty)
            .whole("no_repeat_ngram", made -> made.noRepeatNgram)
            .whole("seed", made -> made.seed);

    /** 0: the largest logit, the lowest token on ties. */
    public Double temperature;
    /** 0: all. */
    public Long topK;
    /** 1: all. */
    public Double topP;
    /** 0: all. */
    public Double minP;
    /** 1: none. */
    public Double repetitionPenalty;
    /** 0: no limit. */
    public Long noRepeatNgram;
    /** The same seed gives the same text; -1, and null: a new seed for each. */
    public Long seed;
    /** The text ends with the first of them; null: the graph's own. */
    public long[] stopTokens;

    /** All null. */
    public Sampling() {}

    /** The likeliest token each time. */
    public static Sampling greedy() {
        Sampling made = new Sampling();
        made.temperature = 0.0;
        return made;
    }

    MemorySegment given(Arena arena, MemorySegment decoder) throws Throwable {
        MemorySegment made = FIELDS.given(
                this, arena, (struct, size) -> (int) Declarations.SAMPLING_DEFAULTS.invokeExact(decoder, struct, size));
        if (stopTokens != null) {
            made.set(ADDRESS, at(SAMPLING, "stop_tokens"), Native.numbers(arena, stopTokens));
            made.set(JAVA_LONG, at(SAMPLING, "stop_count"), stopTokens.length);
        }
        return made;
    }
}
