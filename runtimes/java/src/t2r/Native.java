package t2r;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_DOUBLE;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.StructLayout;
import java.lang.foreign.SymbolLookup;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.nio.charset.StandardCharsets;
import java.util.List;

/** Raw bindings of t2r.h. The public classes are safe. */
@SuppressWarnings("restricted")
final class Native {
    private Native() {}

    static final StructLayout OPTIONS = MemoryLayout.structLayout(
            JAVA_LONG.withName("size"), JAVA_INT.withName("threads"), JAVA_INT.withName("companions"),
            JAVA_LONG.withName("max_state_bytes"), ADDRESS.withName("config"), JAVA_LONG.withName("config_count"),
            ADDRESS.withName("provider"), JAVA_LONG.withName("provider_count"), JAVA_LONG.withName("max_source"));
    static final StructLayout FILE = MemoryLayout.structLayout(
            ADDRESS.withName("name"), ADDRESS.withName("data"), JAVA_LONG.withName("bytes"));
    static final StructLayout INFO = MemoryLayout.structLayout(
            JAVA_LONG.withName("vocab_size"), JAVA_LONG.withName("batch"), JAVA_LONG.withName("fixed_batch"),
            JAVA_LONG.withName("position"), JAVA_LONG.withName("max_positions"), JAVA_LONG.withName("bos_token"),
            JAVA_LONG.withName("top_k"), JAVA_LONG.withName("states"), JAVA_LONG.withName("eos_count"),
            ADDRESS.withName("eos_tokens"), ADDRESS.withName("checkpoint"), JAVA_INT.withName("prefills"),
            JAVA_INT.withName("translates"), JAVA_INT.withName("chats"), MemoryLayout.paddingLayout(4),
            JAVA_LONG.withName("input_size"));
    static final StructLayout SAMPLING = MemoryLayout.structLayout(
            JAVA_LONG.withName("size"), JAVA_DOUBLE.withName("temperature"), JAVA_LONG.withName("top_k"),
            JAVA_DOUBLE.withName("top_p"), JAVA_DOUBLE.withName("min_p"), JAVA_DOUBLE.withName("repetition_penalty"),
            JAVA_LONG.withName("no_repeat_ngram"), JAVA_LONG.withName("seed"), ADDRESS.withName("stop_tokens"),
            JAVA_LONG.withName("stop_count"));
    static final StructLayout TENSOR = MemoryLayout.structLayout(
            ADDRESS.withName("name"), ADDRESS.withName("dtype"), JAVA_LONG.withName("rank"), ADDRESS.withName("shape"),
            ADDRESS.withName("data"), JAVA_LONG.withName("bytes"));
    static final StructLayout BEAM = MemoryLayout.structLayout(
            JAVA_LONG.withName("size"), JAVA_LONG.withName("width"), JAVA_LONG.withName("max_tokens"),
            JAVA_LONG.withName("min_tokens"), JAVA_INT.withName("early_stopping"), JAVA_INT.withName("forced_end"),
            JAVA_LONG.withName("n_best"), JAVA_DOUBLE.withName("length_penalty"),
            JAVA_DOUBLE.withName("repetition_penalty"), JAVA_LONG.withName("no_repeat_ngram"), JAVA_LONG.withName("copy"));

    private static final Linker LINKER = Linker.nativeLinker();
    private static final int MINOR = 1; // the version 0.1: T2R_VERSION_NUMBER of t2r.h without the patch
    private static final SymbolLookup LIBRARY = library();

    static final MethodHandle ERROR = link("t2r_error", FunctionDescriptor.of(ADDRESS));
    static final MethodHandle OPTIONS_DEFAULTS = function("t2r_defaults", ADDRESS, JAVA_LONG);
    static final MethodHandle SAMPLING_DEFAULTS = function("t2r_sampling_defaults", ADDRESS, ADDRESS, JAVA_LONG);
    static final MethodHandle BEAM_DEFAULTS = function("t2r_beam_defaults", ADDRESS, ADDRESS, JAVA_LONG);

    static final MethodHandle SET_LOG = function("t2r_set_log", ADDRESS, ADDRESS, JAVA_INT);
    static final MethodHandle SHARE_THREADS = function("t2r_share_threads", JAVA_INT);
    static final MethodHandle OPEN = function("t2r_open", ADDRESS, ADDRESS, ADDRESS);
    static final MethodHandle OPEN_MEMORY = function("t2r_open_memory", ADDRESS, JAVA_LONG, ADDRESS, ADDRESS);
    static final MethodHandle FORK = function("t2r_fork", ADDRESS, ADDRESS);
    static final MethodHandle COPY = function("t2r_copy", ADDRESS, ADDRESS);
    static final MethodHandle CANCEL = function("t2r_cancel", ADDRESS);
    static final MethodHandle METADATA = function("t2r_metadata", ADDRESS, ADDRESS, ADDRESS, ADDRESS);
    static final MethodHandle CLOSE = function("t2r_close", ADDRESS);
    static final MethodHandle GET_INFO = function("t2r_get_info", ADDRESS, ADDRESS, JAVA_LONG);
    static final MethodHandle RESET = function("t2r_reset", ADDRESS, JAVA_LONG);
    static final MethodHandle STEP = function("t2r_step", ADDRESS, ADDRESS, JAVA_LONG, ADDRESS);
    static final MethodHandle PREFILL = function("t2r_prefill", ADDRESS, ADDRESS, JAVA_LONG, JAVA_LONG, ADDRESS);
    static final MethodHandle TOP_K = function("t2r_top_k", ADDRESS, ADDRESS, JAVA_LONG, JAVA_LONG, ADDRESS, ADDRESS);
    static final MethodHandle READ_VECTORS =
            function("t2r_read_vectors", ADDRESS, ADDRESS, JAVA_LONG, JAVA_LONG, JAVA_LONG, ADDRESS);
    static final MethodHandle REORDER = function("t2r_reorder", ADDRESS, ADDRESS, JAVA_LONG);
    static final MethodHandle TAKE = function("t2r_take", ADDRESS, ADDRESS, ADDRESS, JAVA_LONG);
    static final MethodHandle GENERATE = function(
            "t2r_generate", ADDRESS, ADDRESS, JAVA_LONG, JAVA_LONG, ADDRESS, ADDRESS, ADDRESS, ADDRESS, ADDRESS);
    static final MethodHandle CHOOSE = function("t2r_choose", ADDRESS, ADDRESS, JAVA_LONG, ADDRESS, JAVA_LONG, ADDRESS);
    static final MethodHandle STATE = function("t2r_state", ADDRESS, JAVA_LONG, ADDRESS);
    static final MethodHandle SET_STATES = function("t2r_set_states", ADDRESS, ADDRESS, JAVA_LONG, JAVA_LONG);
    static final MethodHandle SAVE = function("t2r_save", ADDRESS, ADDRESS, JAVA_LONG);
    static final MethodHandle LOAD = function("t2r_load", ADDRESS, ADDRESS, ADDRESS);
    static final MethodHandle SAVE_MEMORY = function("t2r_save_memory", ADDRESS, JAVA_LONG, ADDRESS, ADDRESS);
    static final MethodHandle LOAD_MEMORY = function("t2r_load_memory", ADDRESS, ADDRESS, JAVA_LONG, ADDRESS);

    static final MethodHandle ENCODE_SOURCES =
            function("t2r_encode_sources", ADDRESS, ADDRESS, ADDRESS, JAVA_LONG, JAVA_LONG);
    static final MethodHandle TRANSLATE = function("t2r_translate", ADDRESS, ADDRESS, JAVA_LONG, ADDRESS, ADDRESS);
    static final MethodHandle TRANSLATION = function("t2r_translation", ADDRESS, JAVA_LONG, ADDRESS, ADDRESS, ADDRESS);

    static final MethodHandle OPEN_TOKENIZER = function("t2r_open_tokenizer", ADDRESS, ADDRESS);
    static final MethodHandle OPEN_SOURCE_TOKENIZER = function("t2r_open_source_tokenizer", ADDRESS, ADDRESS);
    static final MethodHandle MAKE_TOKENIZER = function("t2r_make_tokenizer", ADDRESS, JAVA_LONG, JAVA_LONG, ADDRESS);
    static final MethodHandle CLOSE_TOKENIZER = function("t2r_close_tokenizer", ADDRESS);
    static final MethodHandle ENCODE =
            function("t2r_encode", ADDRESS, ADDRESS, JAVA_LONG, JAVA_INT, ADDRESS, ADDRESS);
    static final MethodHandle DECODE = function("t2r_decode", ADDRESS, ADDRESS, JAVA_LONG, ADDRESS, ADDRESS);
    static final MethodHandle OPEN_STREAM = function("t2r_open_stream", ADDRESS, ADDRESS, JAVA_LONG, ADDRESS);
    static final MethodHandle STOP_AT = function("t2r_stop_at", ADDRESS, ADDRESS, JAVA_LONG);
    static final MethodHandle STOPPED = function("t2r_stopped", ADDRESS, ADDRESS);
    static final MethodHandle FEED = function("t2r_feed", ADDRESS, JAVA_LONG, ADDRESS, ADDRESS);
    static final MethodHandle END_STREAM = function("t2r_end_stream", ADDRESS, ADDRESS, ADDRESS);
    static final MethodHandle CLOSE_STREAM = function("t2r_close_stream", ADDRESS);

    private static SymbolLookup library() {
        String name = System.getProperty("t2r.library", System.mapLibraryName("t2r"));
        try {
            return fitting(SymbolLookup.libraryLookup(name, Arena.global()), name);
        } catch (IllegalArgumentException error) {
            throw new UnsatisfiedLinkError("expected " + name + " where the system looks for libraries; "
                    + "received none; set LD_LIBRARY_PATH, or -Dt2r.library=FILE");
        }
    }

    /** Checks the release: a library found by its short name may be of any, as no soname is compared. */
    private static SymbolLookup fitting(SymbolLookup library, String name) {
        int minor;
        try {
            MethodHandle version = LINKER.downcallHandle(library.find("t2r_version").orElseThrow(), FunctionDescriptor.of(JAVA_INT));
            minor = (int) version.invokeExact() / 1000;
        } catch (Throwable error) {
            throw new AssertionError(error); // before t2r_version there was no release
        }
        if (minor != MINOR) {
            throw new UnsatisfiedLinkError("expected " + name + " of the version " + release(MINOR) + "; received "
                    + release(minor) + "; update t2r.jar and libt2r together");
        }
        return library;
    }

    private static String release(int minor) {
        return minor / 1000 + "." + minor % 1000;
    }

    private static MethodHandle link(String name, FunctionDescriptor descriptor) {
        return LINKER.downcallHandle(LIBRARY.find(name).orElseThrow(), descriptor);
    }

    /** A function that returns a kind. */
    private static MethodHandle function(String name, ValueLayout... arguments) {
        return link(name, FunctionDescriptor.of(JAVA_INT, arguments));
    }

    /** A C function that calls a Java method with a token and a pointer. */
    static MemorySegment callback(MethodHandle target, Arena arena) {
        return LINKER.upcallStub(target, FunctionDescriptor.of(JAVA_INT, JAVA_LONG, ADDRESS), arena);
    }

    /** A C function that calls a Java method with a level, a message and a pointer. */
    static MemorySegment log(MethodHandle target, Arena arena) {
        return LINKER.upcallStub(target, FunctionDescriptor.ofVoid(JAVA_INT, ADDRESS, ADDRESS), arena);
    }

    static long at(StructLayout layout, String name) {
        return layout.byteOffset(MemoryLayout.PathElement.groupElement(name));
    }

    /** Throws if the kind is not 0. The message is thread-local, so it is read at once. */
    static void check(int kind) throws Throwable {
        if (kind == 0) {
            return;
        }
        Kind[] kinds = Kind.values();
        String line = text((MemorySegment) ERROR.invokeExact());
        throw new T2rException(kind <= kinds.length ? kinds[kind - 1] : Kind.RUNTIME, line);
    }

    static MemorySegment numbers(Arena arena, long[] tokens) {
        return tokens.length == 0 ? arena.allocate(JAVA_LONG) : arena.allocateFrom(JAVA_LONG, tokens);
    }

    static MemorySegment bytes(Arena arena, byte[] data) {
        MemorySegment made = arena.allocate(Math.max(data.length, 1), Long.BYTES);
        MemorySegment.copy(data, 0, made, ValueLayout.JAVA_BYTE, 0, data.length);
        return made;
    }

    /** Zero-terminated texts. */
    static MemorySegment words(Arena arena, List<String> texts) {
        MemorySegment made = arena.allocate(ADDRESS, Math.max(texts.size(), 1));
        for (int index = 0; index < texts.size(); index++) {
            if (texts.get(index).indexOf('\0') >= 0) {
                throw new T2rException(
                        Kind.ARGUMENT, "expected a text; received one with a zero byte in it; leave that out");
            }
            made.setAtIndex(ADDRESS, index, arena.allocateFrom(texts.get(index)));
        }
        return made;
    }

    /** A copy of the numbers at a pointer. */
    static long[] numbers(MemorySegment pointer, long count) {
        return pointer.reinterpret(count * Long.BYTES).toArray(JAVA_LONG);
    }

    static float[] floats(MemorySegment pointer, long count) {
        return pointer.reinterpret(count * Float.BYTES).toArray(ValueLayout.JAVA_FLOAT);
    }

    static byte[] bytes(MemorySegment pointer, long count) {
        return pointer.reinterpret(count).toArray(ValueLayout.JAVA_BYTE);
    }

    static String text(MemorySegment pointer) {
        return pointer.reinterpret(Long.MAX_VALUE).getString(0);
    }

    static String text(MemorySegment pointer, long size) {
        return new String(bytes(pointer, size), StandardCharsets.UTF_8);
    }
}
