package t2r;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_DOUBLE;
import static java.lang.foreign.ValueLayout.JAVA_FLOAT;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;
import static t2r.Declarations.FILE;
import static t2r.Declarations.INFO;
import static t2r.Declarations.TENSOR;
import static t2r.Native.at;
import static t2r.Native.check;
import static t2r.Native.numbers;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.SequencedMap;
import java.util.function.LongPredicate;
import java.util.stream.LongStream;
import java.util.stream.Stream;

/** An opened step graph and the states of the texts that it reads. What a call returns is a copy. */
public final class Decoder extends Handle {
    private final long vocabSize;
    private final long topK;
    private final long inputSize;
    private long[] written = {};

    private Decoder(MemorySegment handle) {
        super(handle, "decoder", Declarations.CLOSE);
        Info info = info();
        vocabSize = info.vocabSize();
        topK = info.topK();
        inputSize = info.inputSize();
    }

    /** Opens a step graph, at the start of a text. */
    public static Decoder open(Path path) {
        return open(path, new Options());
    }

    public static Decoder open(Path path, Options options) {
        return new Decoder(make(arena -> {
            MemorySegment opened = arena.allocate(ADDRESS);
            check((int) Declarations.OPEN.invokeExact(arena.allocateFrom(path.toString()), options.given(arena), opened));
            return opened.get(ADDRESS, 0);
        }));
    }

    /**
     * Opens a step graph from memory, the first of the files. The others are weights and companions.
     *
     * @param files their bytes, by the names they would have beside it, in order
     */
    public static Decoder openMemory(SequencedMap<String, byte[]> files, Options options) {
        return new Decoder(make(arena -> {
            MemorySegment given = arena.allocate(FILE, Math.max(files.size(), 1)), opened = arena.allocate(ADDRESS);
            MemorySegment names = Native.words(arena, List.copyOf(files.sequencedKeySet()));
            int index = 0;
            for (byte[] data : files.sequencedValues()) {
                MemorySegment file = given.asSlice(index * FILE.byteSize(), FILE);
                file.set(ADDRESS, at(FILE, "name"), names.getAtIndex(ADDRESS, index++));
                file.set(ADDRESS, at(FILE, "data"), Native.bytes(arena, data));
                file.set(JAVA_LONG, at(FILE, "bytes"), data.length);
            }
            check((int) Declarations.OPEN_MEMORY.invokeExact(given, (long) files.size(), options.given(arena), opened));
            return opened.get(ADDRESS, 0);
        }));
    }

    /** Another decoder of the same opened graph, at the start of a text, for another thread: the weights are shared. */
    public Decoder fork() {
        return new Decoder(use(arena -> {
            MemorySegment opened = arena.allocate(ADDRESS);
            check((int) Declarations.FORK.invokeExact(handle, opened));
            return opened.get(ADDRESS, 0);
        }));
    }

    /** As {@link #fork}, with a copy of this decoder's states. */
    public Decoder copy() {
        return new Decoder(use(arena -> {
            MemorySegment opened = arena.allocate(ADDRESS);
            check((int) Declarations.COPY.invokeExact(handle, opened));
            return opened.get(ADDRESS, 0);
        }));
    }

    /**
     * Ends this decoder's running call, from another thread or a callback: it fails with {@link Kind#CANCELLED}, even within
     * a step. Without one, nothing happens.
     */
    public void cancel() {
        make(arena -> {
            check((int) Declarations.CANCEL.invokeExact(handle));
            return null;
        });
    }

    /** The graph's metadata under a key, such as "t2r.chat_template"; null if there is none. */
    public String metadata(String key) {
        return use(arena -> {
            MemorySegment value = arena.allocate(ADDRESS);
            check((int) Declarations.METADATA.invokeExact(handle, arena.allocateFrom(key), value, MemorySegment.NULL));
            MemorySegment found = value.get(ADDRESS, 0);
            return found.equals(MemorySegment.NULL) ? null : Native.text(found);
        });
    }

    public Info info() {
        return use(arena -> {
            MemorySegment found = arena.allocate(INFO);
            check((int) Declarations.GET_INFO.invokeExact(handle, found, INFO.byteSize()));
            return new Info(
                    found.get(JAVA_LONG, at(INFO, "vocab_size")),
                    found.get(JAVA_LONG, at(INFO, "batch")),
                    found.get(JAVA_LONG, at(INFO, "fixed_batch")),
                    found.get(JAVA_LONG, at(INFO, "position")),
                    found.get(JAVA_LONG, at(INFO, "max_positions")),
                    found.get(JAVA_LONG, at(INFO, "bos_token")),
                    numbers(found.get(ADDRESS, at(INFO, "eos_tokens")), found.get(JAVA_LONG, at(INFO, "eos_count"))),
                    found.get(JAVA_LONG, at(INFO, "top_k")),
                    found.get(JAVA_LONG, at(INFO, "states")),
                    Native.text(found.get(ADDRESS, at(INFO, "checkpoint"))),
                    found.get(JAVA_INT, at(INFO, "prefills")) != 0,
                    found.get(JAVA_INT, at(INFO, "translates")) != 0,
                    found.get(JAVA_INT, at(INFO, "chats")) != 0,
                    found.get(JAVA_LONG, at(INFO, "input_size")));
        });
    }

    /** Resets to the start of a text, for batch sequences; 0 keeps the batch. */
    public void reset(long batch) {
        use(arena -> {
            check((int) Declarations.RESET.invokeExact(handle, batch));
            return null;
        });
    }

    /**
     * Sets whether {@link #generate}, from now on, guesses tokens by what followed the latest ones before, and checks several in one run.
     * The graph must have a draft-check graph beside it.
     *
     * @param lookup whether it guesses
     */
    public void draft(boolean lookup) {
        use(arena -> {
            check((int) Declarations.DRAFT.invokeExact(handle, lookup ? 1 : 0));
            return null;
        });
    }

    /**
     * Chooses the low-rank adapters that the tokens from now on use, by names in the metadata "t2r.adapters", null for none.
     * Rows keep theirs when they move; {@link #reset} chooses none.
     *
     * @param names one per sequence, or one for all
     */
    public void adapt(String... names) {
        use(arena -> {
            List<String> texts = Stream.of(names).map(name -> Objects.requireNonNullElse(name, "")).toList();
            MemorySegment given = Native.words(arena, texts);
            for (int row = 0; row < names.length; row++) {
                if (names[row] == null) {
                    given.setAtIndex(ADDRESS, row, MemorySegment.NULL);
                }
            }
            check((int) Declarations.ADAPT.invokeExact(handle, given, (long) names.length));
            return null;
        });
    }

    /** Reads one token per sequence. Returns the logits of the next token, (batch, vocabSize), row-major. */
    public float[] step(long... tokens) {
        return use(arena -> {
            MemorySegment logits = arena.allocate(ADDRESS);
            check((int) Declarations.STEP.invokeExact(handle, numbers(arena, tokens), (long) tokens.length, logits));
            return Native.floats(logits.get(ADDRESS, 0), tokens.length * vocabSize);
        });
    }

    /**
     * Reads equally many tokens of each sequence, many per run if there is a prefill graph. Returns the logits of the next
     * token, (batch, vocabSize).
     */
    public float[] prefill(long[]... rows) {
        return use(arena -> {
            MemorySegment tokens = flat(arena, rows), logits = arena.allocate(ADDRESS);
            check((int) Declarations.PREFILL.invokeExact(handle, tokens, (long) rows.length, length(rows), logits));
            return Native.floats(logits.get(ADDRESS, 0), rows.length * vocabSize);
        });
    }

    /** As {@link #prefill}, but returns only the largest logits. */
    public Top topK(long[]... rows) {
        return use(arena -> {
            MemorySegment tokens = flat(arena, rows), logits = arena.allocate(ADDRESS), chosen = arena.allocate(ADDRESS);
            check((int) Declarations.TOP_K.invokeExact(handle, tokens, (long) rows.length, length(rows), logits, chosen));
            long count = rows.length * topK;
            return new Top(Native.floats(logits.get(ADDRESS, 0), count), numbers(chosen.get(ADDRESS, 0), count));
        });
    }

    /**
     * For a graph that reads vectors, which the calls for tokens refuse: reads equally many of each sequence, row-major,
     * {@link Info#inputSize} elements each. One is a step. Returns the next logits, (batch, vocabSize).
     */
    public float[] readVectors(float[]... rows) {
        long size = Math.max(inputSize, 1), elements = rows.length == 0 ? 0 : rows[0].length; // of tokens: refused below
        for (float[] row : rows) {
            if (row.length != elements || elements % size != 0) {
                throw new T2rException(Kind.BATCH, "expected equally many vectors of " + size
                        + " elements of each sequence; received " + row.length + " elements; read them one by one");
            }
        }
        return use(arena -> {
            MemorySegment vectors = arena.allocate(JAVA_FLOAT, Math.max(rows.length * elements, 1));
            for (int row = 0; row < rows.length; row++) {
                MemorySegment.copy(rows[row], 0, vectors, JAVA_FLOAT, row * elements * Float.BYTES, rows[row].length);
            }
            MemorySegment logits = arena.allocate(ADDRESS);
            check((int) Declarations.READ_VECTORS.invokeExact(
                    handle, vectors, (long) rows.length, elements / size, size, logits));
            return Native.floats(logits.get(ADDRESS, 0), rows.length * vocabSize);
        });
    }

    /** Drops, repeats or reorders the sequences. The batch becomes the number of rows. */
    public void reorder(long... rows) {
        use(arena -> {
            check((int) Declarations.REORDER.invokeExact(handle, numbers(arena, rows), (long) rows.length));
            return null;
        });
    }

    /** A row of a decoder. */
    public record Row(Decoder decoder, long row) {}

    /** Replaces the states with rows of decoders of the same graph: forks, copies and this one. */
    public void take(Row... rows) {
        use(arena -> {
            MemorySegment from = arena.allocate(ADDRESS, Math.max(rows.length, 1));
            for (int index = 0; index < rows.length; index++) {
                from.setAtIndex(ADDRESS, index, rows[index].decoder().handle);
            }
            long[] places = Stream.of(rows).mapToLong(Row::row).toArray();
            check((int) Declarations.TAKE.invokeExact(handle, from, numbers(arena, places), (long) rows.length));
            return null;
        });
    }

    /**
     * The token that {@link #generate} would choose from a row's logits, which the caller may modify.
     *
     * @param draw how many tokens were chosen in its text before
     */
    public long choose(float[] logits, long row, Sampling sampling, long draw) {
        if (logits.length != vocabSize) {
            throw new T2rException(
                    Kind.ARGUMENT,
                    "expected " + vocabSize + " logits of one row; received " + logits.length + "; cut them");
        }
        return use(arena -> {
            MemorySegment token = arena.allocate(JAVA_LONG), given = arena.allocateFrom(JAVA_FLOAT, logits);
            check((int) Declarations.CHOOSE.invokeExact(handle, given, row, sampling.given(arena, handle), draw, token));
            return token.get(JAVA_LONG, 0);
        });
    }

    /**
     * Reads a prompt, and generates up to maxTokens tokens. The last is chosen but not read: begin the next call with
     * it.
     */
    public long[] generate(long[] prompt, long maxTokens, Sampling sampling) {
        return use(arena -> write(arena, prompt, maxTokens, sampling, MemorySegment.NULL));
    }

    /** The same, passing each token to callback as it is chosen; false ends the text there. */
    public long[] generate(long[] prompt, long maxTokens, Sampling sampling, LongPredicate callback) {
        Progress progress = new Progress(callback);
        long[] written = use(arena -> write(arena, prompt, maxTokens, sampling, progress.stub(arena)));
        progress.rethrow();
        return written;
    }

    private long[] write(Arena arena, long[] prompt, long maxTokens, Sampling sampling, MemorySegment callback)
            throws Throwable {
        MemorySegment tokens = arena.allocate(ADDRESS), count = arena.allocate(JAVA_LONG);
        written = new long[0];
        int kind = (int) Declarations.GENERATE.invokeExact(
                handle, numbers(arena, prompt), (long) prompt.length, maxTokens, sampling.given(arena, handle), callback,
                MemorySegment.NULL, tokens, count);
        written = numbers(tokens.get(ADDRESS, 0), count.get(JAVA_LONG, 0));
        check(kind);
        return written();
    }

    /** The tokens that the last {@link #generate} chose, even if it failed. */
    public long[] written() {
        return written.clone();
    }

    /** Copies of all states. */
    public List<Tensor> states() {
        List<Tensor> states = new ArrayList<>();
        for (long index = 0, count = info().states(); index < count; index++) {
            states.add(state(index));
        }
        return states;
    }

    private Tensor state(long index) {
        return use(arena -> {
            MemorySegment found = arena.allocate(TENSOR);
            check((int) Declarations.STATE.invokeExact(handle, index, found));
            return new Tensor(
                    Native.text(found.get(ADDRESS, at(TENSOR, "name"))),
                    Native.text(found.get(ADDRESS, at(TENSOR, "dtype"))),
                    numbers(found.get(ADDRESS, at(TENSOR, "shape")), found.get(JAVA_LONG, at(TENSOR, "rank"))),
                    Native.bytes(found.get(ADDRESS, at(TENSOR, "data")), found.get(JAVA_LONG, at(TENSOR, "bytes"))));
        });
    }

    /**
     * Continues from a complete set of states; the batch becomes theirs.
     *
     * @param position tokens read, if no state says it
     */
    public void setStates(List<Tensor> states, long position) {
        use(arena -> {
            MemorySegment all = arena.allocate(TENSOR, Math.max(states.size(), 1));
            for (int index = 0; index < states.size(); index++) {
                Tensor state = states.get(index);
                MemorySegment given = all.asSlice(index * TENSOR.byteSize(), TENSOR);
                given.set(ADDRESS, at(TENSOR, "name"), word(arena, state.name()));
                given.set(ADDRESS, at(TENSOR, "dtype"), word(arena, state.dtype()));
                given.set(JAVA_LONG, at(TENSOR, "rank"), state.shape().length);
                given.set(ADDRESS, at(TENSOR, "shape"), numbers(arena, state.shape()));
                given.set(ADDRESS, at(TENSOR, "data"), Native.bytes(arena, state.data()));
                given.set(JAVA_LONG, at(TENSOR, "bytes"), state.data().length);
            }
            check((int) Declarations.SET_STATES.invokeExact(handle, all, (long) states.size(), position));
            return null;
        });
    }

    private static MemorySegment word(Arena arena, String text) {
        if (text.indexOf('\0') >= 0) {
            throw new T2rException(
                    Kind.SNAPSHOT, "expected a state's name and dtype; received a zero byte in it; see Decoder.states");
        }
        return arena.allocateFrom(text);
    }

    /** Writes the states to a file, and a token that was chosen but not read, or -1. */
    public void save(Path path, long token) {
        use(arena -> {
            check((int) Declarations.SAVE.invokeExact(handle, arena.allocateFrom(path.toString()), token));
            return null;
        });
    }

    /** Continues from such a file, of any language's runtime. Returns the saved token, or -1. */
    public long load(Path path) {
        return use(arena -> {
            MemorySegment token = arena.allocateFrom(JAVA_LONG, -1);
            check((int) Declarations.LOAD.invokeExact(handle, arena.allocateFrom(path.toString()), token));
            return token.get(JAVA_LONG, 0);
        });
    }

    /** The bytes that {@link #save} would write. */
    public byte[] saveMemory(long token) {
        return use(arena -> {
            MemorySegment data = arena.allocate(ADDRESS), size = arena.allocate(JAVA_LONG);
            check((int) Declarations.SAVE_MEMORY.invokeExact(handle, token, data, size));
            return Native.bytes(data.get(ADDRESS, 0), size.get(JAVA_LONG, 0));
        });
    }

    /** As {@link #load}, from such bytes. */
    public long loadMemory(byte[] snapshot) {
        return use(arena -> {
            MemorySegment data = Native.bytes(arena, snapshot), token = arena.allocateFrom(JAVA_LONG, -1);
            check((int) Declarations.LOAD_MEMORY.invokeExact(handle, data, (long) snapshot.length, token));
            return token.get(JAVA_LONG, 0);
        });
    }

    /** Reads sources; the start tokens of their translations come next. The batch becomes the number of sources. */
    public void encodeSources(long[]... sources) {
        use(arena -> {
            long[] lengths = Stream.of(sources).mapToLong(source -> source.length).toArray();
            long longest = LongStream.of(lengths).max().orElse(0);
            MemorySegment tokens = arena.allocate(JAVA_LONG, Math.max(sources.length * longest, 1));
            for (int row = 0; row < sources.length; row++) {
                MemorySegment.copy(sources[row], 0, tokens, JAVA_LONG, row * longest * Long.BYTES, sources[row].length);
            }
            check((int) Declarations.ENCODE_SOURCES.invokeExact(
                    handle, tokens, numbers(arena, lengths), (long) sources.length, longest));
            return null;
        });
    }

    /** Translates a source by beam search, best first. */
    public List<Translation> translate(long[] source, Beam beam) {
        return use(arena -> {
            MemorySegment found = arena.allocate(JAVA_LONG);
            check((int) Declarations.TRANSLATE.invokeExact(
                    handle, numbers(arena, source), (long) source.length, beam.given(arena, handle), found));
            List<Translation> translations = new ArrayList<>();
            MemorySegment tokens = arena.allocate(ADDRESS), count = arena.allocate(JAVA_LONG), score = arena.allocate(JAVA_DOUBLE);
            for (long index = 0; index < found.get(JAVA_LONG, 0); index++) {
                check((int) Declarations.TRANSLATION.invokeExact(handle, index, tokens, count, score));
                translations.add(new Translation(
                        numbers(tokens.get(ADDRESS, 0), count.get(JAVA_LONG, 0)), score.get(JAVA_DOUBLE, 0)));
            }
            return translations;
        });
    }

    /** The tokenizer in the graph's metadata. */
    public Tokenizer tokenizer() {
        return new Tokenizer(use(arena -> {
            MemorySegment opened = arena.allocate(ADDRESS);
            check((int) Declarations.OPEN_TOKENIZER.invokeExact(handle, opened));
            return opened.get(ADDRESS, 0);
        }));
    }

    /** The tokenizer of a translator's sources; the graph's own if there is no other. */
    public Tokenizer sourceTokenizer() {
        return new Tokenizer(use(arena -> {
            MemorySegment opened = arena.allocate(ADDRESS);
            check((int) Declarations.OPEN_SOURCE_TOKENIZER.invokeExact(handle, opened));
            return opened.get(ADDRESS, 0);
        }));
    }

    private static long length(long[][] rows) {
        return rows.length == 0 ? 0 : rows[0].length;
    }

    private static MemorySegment flat(Arena arena, long[][] rows) {
        for (long[] row : rows) {
            if (row.length != length(rows)) {
                throw new T2rException(Kind.BATCH, "expected rows of one length; received " + length(rows) + " and "
                        + row.length + " tokens; read them one by one");
            }
        }
        return numbers(arena, Stream.of(rows).flatMapToLong(LongStream::of).toArray());
    }
}
