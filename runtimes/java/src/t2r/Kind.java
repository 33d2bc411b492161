package t2r;

import java.util.Locale;

/** Error kinds, with the same names in every language's runtime. */
public enum Kind {
    /** No such file, or one that cannot be read or written. */
    FILE,
    /** Not a graph that ONNX Runtime opens, or one of another role; logits that are not finite. */
    GRAPH,
    /** Another contract version, or a newer opset than ONNX Runtime reads. */
    VERSION,
    /** Metadata that is missing, malformed or too large; states that are too large. */
    METADATA,
    /** Inputs or outputs that differ from the metadata. */
    INTERFACE,
    /** Weights beside the graph that are missing, too short, or outside of its folder. */
    WEIGHTS,
    /** No tokenizer, one with unknown parts, or text that is not UTF-8. */
    TOKENIZER,
    /** A token outside the vocabulary. */
    TOKEN,
    /** More tokens than the model has positions. */
    POSITION,
    /** A wrong number of sequences. */
    BATCH,
    /** An invalid snapshot, or invalid states. */
    SNAPSHOT,
    /** An option out of range. */
    SAMPLING,
    /** An execution provider, its options, or threads. */
    PROVIDER,
    /** NULL, an index or a structure's size that a C function does not accept. */
    ARGUMENT,
    /** A handle that is closed, or in use by another thread or by the call that runs the callback. */
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
