package t2r;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_DOUBLE;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.StructLayout;
import java.lang.invoke.MethodHandle;

/** The declarations of t2r.h, which runtimes/bindings/declarations.py writes. The public classes are safe. */
final class Declarations {
    private Declarations() {}

    /** T2R_VERSION_NUMBER without the patch. */
    static final int MINOR = 1;

    static final StructLayout OPTIONS = MemoryLayout.structLayout(
            JAVA_LONG.withName("size"),
            JAVA_INT.withName("threads"),
            JAVA_INT.withName("companions"),
            JAVA_LONG.withName("max_state_bytes"),
            ADDRESS.withName("config"),
            JAVA_LONG.withName("config_count"),
            ADDRESS.withName("provider"),
            JAVA_LONG.withName("provider_count"),
            JAVA_LONG.withName("max_source"));

    static final StructLayout FILE = MemoryLayout.structLayout(
            ADDRESS.withName("name"),
            ADDRESS.withName("data"),
            JAVA_LONG.withName("bytes"));

    static final StructLayout INFO = MemoryLayout.structLayout(
            JAVA_LONG.withName("vocab_size"),
            JAVA_LONG.withName("batch"),
            JAVA_LONG.withName("fixed_batch"),
            JAVA_LONG.withName("position"),
            JAVA_LONG.withName("max_positions"),
            JAVA_LONG.withName("bos_token"),
            JAVA_LONG.withName("top_k"),
            JAVA_LONG.withName("states"),
            JAVA_LONG.withName("eos_count"),
            ADDRESS.withName("eos_tokens"),
            ADDRESS.withName("checkpoint"),
            JAVA_INT.withName("prefills"),
            JAVA_INT.withName("translates"),
            JAVA_INT.withName("chats"),
            MemoryLayout.paddingLayout(4),
            JAVA_LONG.withName("input_size"));

    static final StructLayout SAMPLING = MemoryLayout.structLayout(
            JAVA_LONG.withName("size"),
            JAVA_DOUBLE.withName("temperature"),
            JAVA_LONG.withName("top_k"),
            JAVA_DOUBLE.withName("top_p"),
            JAVA_DOUBLE.withName("min_p"),
            JAVA_DOUBLE.withName("repetition_penalty"),
            JAVA_LONG.withName("no_repeat_ngram"),
            JAVA_LONG.withName("seed"),
            ADDRESS.withName("stop_tokens"),
            JAVA_LONG.withName("stop_count"));

    static final StructLayout TENSOR = MemoryLayout.structLayout(
            ADDRESS.withName("name"),
            ADDRESS.withName("dtype"),
            JAVA_LONG.withName("rank"),
            ADDRESS.withName("shape"),
            ADDRESS.withName("data"),
            JAVA_LONG.withName("bytes"));

    static final StructLayout BEAM = MemoryLayout.structLayout(
            JAVA_LONG.withName("size"),
            JAVA_LONG.withName("width"),
            JAVA_LONG.withName("max_tokens"),
            JAVA_LONG.withName("min_tokens"),
            JAVA_INT.withName("early_stopping"),
            JAVA_INT.withName("forced_end"),
            JAVA_LONG.withName("n_best"),
            JAVA_DOUBLE.withName("length_penalty"),
            JAVA_DOUBLE.withName("repetition_penalty"),
            JAVA_LONG.withName("no_repeat_ngram"),
            JAVA_LONG.withName("copy"));

    static final FunctionDescriptor LOG = FunctionDescriptor.ofVoid(JAVA_INT, ADDRESS, ADDRESS);

    static final FunctionDescriptor CALLBACK = FunctionDescriptor.of(JAVA_INT, JAVA_LONG, ADDRESS);

    static final MethodHandle KIND_NAME = Native.function("t2r_kind_name", ADDRESS, JAVA_INT);
    static final MethodHandle ERROR = Native.function("t2r_error", ADDRESS);
    static final MethodHandle VERSION = Native.function("t2r_version", JAVA_INT);
    static final MethodHandle SET_LOG = Native.function("t2r_set_log", JAVA_INT, ADDRESS, ADDRESS, JAVA_INT);
    static final MethodHandle SHARE_THREADS = Native.function("t2r_share_threads", JAVA_INT, JAVA_INT);
    static final MethodHandle DEFAULTS = Native.function("t2r_defaults", JAVA_INT, ADDRESS, JAVA_LONG);
    static final MethodHandle OPEN = Native.function("t2r_open", JAVA_INT, ADDRESS, ADDRESS, ADDRESS);
    static final MethodHandle OPEN_MEMORY =
            Native.function("t2r_open_memory", JAVA_INT, ADDRESS, JAVA_LONG, ADDRESS, ADDRESS);
    static final MethodHandle FORK = Native.function("t2r_fork", JAVA_INT, ADDRESS, ADDRESS);
    static final MethodHandle COPY = Native.function("t2r_copy", JAVA_INT, ADDRESS, ADDRESS);
    static final MethodHandle CANCEL = Native.function("t2r_cancel", JAVA_INT, ADDRESS);
    static final MethodHandle CLOSE = Native.function("t2r_close", JAVA_INT, ADDRESS);
    static final MethodHandle GET_INFO = Native.function("t2r_get_info", JAVA_INT, ADDRESS, ADDRESS, JAVA_LONG);
    static final MethodHandle METADATA = Native.function("t2r_metadata", JAVA_INT, ADDRESS, ADDRESS, ADDRESS, ADDRESS);
    static final MethodHandle RESET = Native.function("t2r_reset", JAVA_INT, ADDRESS, JAVA_LONG);
    static final MethodHandle ADAPT = Native.function("t2r_adapt", JAVA_INT, ADDRESS, ADDRESS, JAVA_LONG);
    static final MethodHandle STEP = Native.function("t2r_step", JAVA_INT, ADDRESS, ADDRESS, JAVA_LONG, ADDRESS);
    static final MethodHandle PREFILL =
            Native.function("t2r_prefill", JAVA_INT, ADDRESS, ADDRESS, JAVA_LONG, JAVA_LONG, ADDRESS);
    static final MethodHandle TOP_K =
            Native.function("t2r_top_k", JAVA_INT, ADDRESS, ADDRESS, JAVA_LONG, JAVA_LONG, ADDRESS, ADDRESS);
    static final MethodHandle READ_VECTORS =
            Native.function("t2r_read_vectors", JAVA_INT, ADDRESS, ADDRESS, JAVA_LONG, JAVA_LONG, JAVA_LONG, ADDRESS);
    static final MethodHandle REORDER = Native.function("t2r_reorder", JAVA_INT, ADDRESS, ADDRESS, JAVA_LONG);
    static final MethodHandle TAKE = Native.function("t2r_take", JAVA_INT, ADDRESS, ADDRESS, ADDRESS, JAVA_LONG);
    static final MethodHandle SAMPLING_DEFAULTS =
            Native.function("t2r_sampling_defaults", JAVA_INT, ADDRESS, ADDRESS, JAVA_LONG);
    static final MethodHandle GENERATE = Native.function("t2r_generate",
            JAVA_INT, ADDRESS, ADDRESS, JAVA_LONG, JAVA_LONG, ADDRESS, ADDRESS, ADDRESS, ADDRESS, ADDRESS);
    static final MethodHandle DRAFT = Native.function("t2r_draft", JAVA_INT, ADDRESS, JAVA_INT);
    static final MethodHandle CHOOSE =
            Native.function("t2r_choose", JAVA_INT, ADDRESS, ADDRESS, JAVA_LONG, ADDRESS, JAVA_LONG, ADDRESS);
    static final MethodHandle STATE = Native.function("t2r_state", JAVA_INT, ADDRESS, JAVA_LONG, ADDRESS);
    static final MethodHandle SET_STATES =
            Native.function("t2r_set_states", JAVA_INT, ADDRESS, ADDRESS, JAVA_LONG, JAVA_LONG);
    static final MethodHandle SAVE = Native.function("t2r_save", JAVA_INT, ADDRESS, ADDRESS, JAVA_LONG);
    static final MethodHandle LOAD = Native.function("t2r_load", JAVA_INT, ADDRESS, ADDRESS, ADDRESS);
    static final MethodHandle SAVE_MEMORY =
            Native.function("t2r_save_memory", JAVA_INT, ADDRESS, JAVA_LONG, ADDRESS, ADDRESS);
    static final MethodHandle LOAD_MEMORY =
            Native.function("t2r_load_memory", JAVA_INT, ADDRESS, ADDRESS, JAVA_LONG, ADDRESS);
    static final MethodHandle ENCODE_SOURCES =
            Native.function("t2r_encode_sources", JAVA_INT, ADDRESS, ADDRESS, ADDRESS, JAVA_LONG, JAVA_LONG);
    static final MethodHandle BEAM_DEFAULTS =
            Native.function("t2r_beam_defaults", JAVA_INT, ADDRESS, ADDRESS, JAVA_LONG);
    static final MethodHandle TRANSLATE =
            Native.function("t2r_translate", JAVA_INT, ADDRESS, ADDRESS, JAVA_LONG, ADDRESS, ADDRESS);
    static final MethodHandle TRANSLATION =
            Native.function("t2r_translation", JAVA_INT, ADDRESS, JAVA_LONG, ADDRESS, ADDRESS, ADDRESS);
    static final MethodHandle OPEN_TOKENIZER = Native.function("t2r_open_tokenizer", JAVA_INT, ADDRESS, ADDRESS);
    static final MethodHandle OPEN_SOURCE_TOKENIZER =
            Native.function("t2r_open_source_tokenizer", JAVA_INT, ADDRESS, ADDRESS);
    static final MethodHandle MAKE_TOKENIZER =
            Native.function("t2r_make_tokenizer", JAVA_INT, ADDRESS, JAVA_LONG, JAVA_LONG, ADDRESS);
    static final MethodHandle CLOSE_TOKENIZER = Native.function("t2r_close_tokenizer", JAVA_INT, ADDRESS);
    static final MethodHandle ENCODE =
            Native.function("t2r_encode", JAVA_INT, ADDRESS, ADDRESS, JAVA_LONG, JAVA_INT, ADDRESS, ADDRESS);
    static final MethodHandle DECODE =
            Native.function("t2r_decode", JAVA_INT, ADDRESS, ADDRESS, JAVA_LONG, ADDRESS, ADDRESS);
    static final MethodHandle OPEN_STREAM =
            Native.function("t2r_open_stream", JAVA_INT, ADDRESS, ADDRESS, JAVA_LONG, ADDRESS);
    static final MethodHandle STOP_AT = Native.function("t2r_stop_at", JAVA_INT, ADDRESS, ADDRESS, JAVA_LONG);
    static final MethodHandle STOPPED = Native.function("t2r_stopped", JAVA_INT, ADDRESS, ADDRESS);
    static final MethodHandle FEED = Native.function("t2r_feed", JAVA_INT, ADDRESS, JAVA_LONG, ADDRESS, ADDRESS);
    static final MethodHandle END_STREAM = Native.function("t2r_end_stream", JAVA_INT, ADDRESS, ADDRESS, ADDRESS);
    static final MethodHandle CLOSE_STREAM = Native.function("t2r_close_stream", JAVA_INT, ADDRESS);
}
