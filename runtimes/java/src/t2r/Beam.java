package t2r;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;

/** How translations are searched for. A new one has the library's defaults. */
public final class Beam {
    private static final Fields<Beam> FIELDS = new Fields<Beam>(Native.BEAM, Native.BEAM_DEFAULTS)
            .whole("width", made -> made.width, (made, value) -> made.width = value)
            .whole("max_tokens", made -> made.maxTokens, (made, value) -> made.maxTokens = value)
            .whole("min_tokens", made -> made.minTokens, (made, value) -> made.minTokens = value)
            .small("early_stopping", made -> made.earlyStopping.ordinal(),
                    (made, value) -> made.earlyStopping = EarlyStopping.values()[value])
            .small("forced_end", made -> made.forcedEnd ? 1 : 0, (made, value) -> made.forcedEnd = value != 0)
            .whole("n_best", made -> made.nBest, (made, value) -> made.nBest = value)
            .real("length_penalty", made -> made.lengthPenalty, (made, value) -> made.lengthPenalty = value)
            .real("repetition_penalty", made -> made.repetitionPenalty, (made, value) -> made.repetitionPenalty = value)
            .whole("no_repeat_ngram", made -> made.noRepeatNgram, (made, value) -> made.noRepeatNgram = value);

    /** When a search ends before its maxTokens. */
    public enum EarlyStopping {
        /** When width hypotheses are finished, and none that goes on looks better. */
        NO,
        /** When width hypotheses are finished. */
        YES,
        /** Not before none can become better. */
        NEVER
    }

    /** 1 is greedy. */
    public long width;
    /** 0: 256, or fewer where positions end before. */
    public long maxTokens;
    public long minTokens;
    public EarlyStopping earlyStopping;
    /** Whether the last of maxTokens is an end. */
    public boolean forcedEnd;
    public long nBest;
    public double lengthPenalty;
    /** 1: none. */
    public double repetitionPenalty;
    /** 0: no limit. */
    public long noRepeatNgram;

    public Beam() {
        FIELDS.reset(this);
    }

    MemorySegment given(Arena arena) {
        return FIELDS.given(this, arena);
    }
}
