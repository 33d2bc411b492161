package t2r;

import static java.lang.foreign.ValueLayout.JAVA_DOUBLE;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;
import static t2r.Native.BEAM;
import static t2r.Native.at;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;

/** How translations are searched for. A new one has the library's defaults. */
public final class Beam {
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
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment made = Native.defaults(Native.BEAM_DEFAULTS, arena);
            width = made.get(JAVA_LONG, at(BEAM, "width"));
            maxTokens = made.get(JAVA_LONG, at(BEAM, "max_tokens"));
            minTokens = made.get(JAVA_LONG, at(BEAM, "min_tokens"));
            earlyStopping = EarlyStopping.values()[made.get(JAVA_INT, at(BEAM, "early_stopping"))];
            forcedEnd = made.get(JAVA_INT, at(BEAM, "forced_end")) != 0;
            nBest = made.get(JAVA_LONG, at(BEAM, "n_best"));
            lengthPenalty = made.get(JAVA_DOUBLE, at(BEAM, "length_penalty"));
            repetitionPenalty = made.get(JAVA_DOUBLE, at(BEAM, "repetition_penalty"));
            noRepeatNgram = made.get(JAVA_LONG, at(BEAM, "no_repeat_ngram"));
        }
    }

    MemorySegment given(Arena arena) {
        MemorySegment made = Native.defaults(Native.BEAM_DEFAULTS, arena);
        made.set(JAVA_LONG, at(BEAM, "width"), width);
        made.set(JAVA_LONG, at(BEAM, "max_tokens"), maxTokens);
        made.set(JAVA_LONG, at(BEAM, "min_tokens"), minTokens);
        made.set(JAVA_INT, at(BEAM, "early_stopping"), earlyStopping.ordinal());
        made.set(JAVA_INT, at(BEAM, "forced_end"), forcedEnd ? 1 : 0);
        made.set(JAVA_LONG, at(BEAM, "n_best"), nBest);
        made.set(JAVA_DOUBLE, at(BEAM, "length_penalty"), lengthPenalty);
        made.set(JAVA_DOUBLE, at(BEAM, "repetition_penalty"), repetitionPenalty);
        made.set(JAVA_LONG, at(BEAM, "no_repeat_ngram"), noRepeatNgram);
        return made;
    }
}
