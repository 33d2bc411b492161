package t2r;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;

/** Options of beam search. null means the graph's value. */
public final class Beam {
    private static final Fields<Beam> FIELDS = new Fields<Beam>(Declarations.BEAM)
            .whole("width", made -> made.width)
            .whole("max_tokens", made -> made.maxTokens)
            .whole("min_tokens", made -> made.minTokens)
            .small("early_stopping", made -> made.earlyStopping == null ? null : Integer.valueOf(made.earlyStopping.ordinal()))
            .small("forced_end", made -> made.forcedEnd == null ? null : Integer.valueOf(made.forcedEnd ? 1 : 0))
            .whole("n_best", made -> made.nBest)
            .real("length_penalty", made -> made.lengthPenalty)
            .real("repetition_penalty", made -> made.repetitionPenalty)
            .whole("no_repeat_ngram", made -> made.noRepeatNgram)
            .whole("copy", made -> made.copy == null ? null : Long.valueOf(made.copy ? 1 : 0));

    /** When a search ends before its maxTokens. */
    public enum EarlyStopping {
        /** When width hypotheses are finished, and no unfinished one looks better. */
        NO,
        /** When width hypotheses are finished. */
        YES,
        /** When no unfinished hypothesis can become better. */
        NEVER
    }

    /** 1 is greedy. */
    public Long width;
    /** 0, and null: the graph's, capped at the model's positions. */
    public Long maxTokens;
    public Long minTokens;
    public EarlyStopping earlyStopping;
    /** Whether the last of maxTokens is forced to be an end token. */
    public Boolean forcedEnd;
    public Long nBest;
    public Double lengthPenalty;
    /** 1: none. */
    public Double repetitionPenalty;
    /** 0: no limit. */
    public Long noRepeatNgram;
    /** Whether numbers and unknown names of the source are copied. */
    public Boolean copy;

    /** All null. */
    public Beam() {}

    MemorySegment given(Arena arena, MemorySegment decoder) throws Throwable {
        return FIELDS.given(this, arena, (made, size) -> (int) Declarations.BEAM_DEFAULTS.invokeExact(decoder, made, size));
    }
}
