package t2r;

import java.util.Locale;

/** What can go wrong: the same kinds, by the same names, in every language's runtime. */
public enum Kind {
    /** No such file, or one that cannot be read or written. */
    FILE,
    /** Not a graph that ONNX Runtime opens, or one of another role; logits that are not finite. */
    GRAPH,
    /** Another contract version, or a newer opset than ONNX Runtime reads. */
    VERSION,
    /** Metadata that is missing, malformed or too large; states that are. */
    METADATA,
    /** Other inputs or outputs than the metadata says. */
    INTERFACE,
    /** Weights beside the graph that are missing, too short, or outside of its folder. */
    WEIGHTS,
    /** None, one of parts that are not known, or text that is no UTF-8. */
    TOKENIZER,
    /** A token that the model has not. */
    TOKEN,
    /** More tokens than the model has positions. */
    POSITION,
    /** Another number of sequences. */
    BATCH,
    /** Anything wrong with a snapshot, or with states that are given. */
    SNAPSHOT,
    /** An option out of range. */
    SAMPLING,
    /** An execution provider, its options, or threads. */
    PROVIDER,
    /** NULL, an index or a structure's size where a function of C cannot take it. */
    ARGUMENT,
    /** What is closed, or in use by another thread or by the call whose callback this is. */
    STATE,
    /** No more memory, or too many open handles. */
    MEMORY,
    /** ONNX Runtime failed in a run. */
    RUNTIME,
    /** {@link Decoder#cancel} ended the call. */
    CANCELLED;

    /** The kind's name, as in "token". */
    @Override
    public String toString() {
        return name().toLowerCase(Locale.ROOT);
    }
}
