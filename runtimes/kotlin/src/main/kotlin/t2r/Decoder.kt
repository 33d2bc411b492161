package t2r

/** How a graph is opened. threads: in an operator; 0: one per core. maxStateBytes: 0: the library's default limit. */
data class Options(val threads: Int = 0, val companions: Boolean = true, val maxStateBytes: Long = 0)

/** How tokens are chosen. null means the graph's value. seed: null: a new one for each text. */
class Sampling(
    val temperature: Double? = null,
    val topK: Long? = null,
    val topP: Double? = null,
    val minP: Double? = null,
    val repetitionPenalty: Double? = null,
    val noRepeatNgram: Long? = null,
    val seed: Long? = null,
    val stopTokens: LongArray? = null,
) {
    companion object {
        /** The likeliest token each time. */
        val GREEDY = Sampling(temperature = 0.0)
    }
}

/** fixedBatch: 0: any. maxPositions: 0: no limit. bosToken: -1: none. */
class Info(
    val vocabSize: Long, val batch: Long, val fixedBatch: Long, val position: Long, val maxPositions: Long, val bosToken: Long,
    val topK: Long, val eosTokens: LongArray,
)

/** An opened step graph and the states of the texts that it reads. What a call returns is a copy. */
class Decoder private constructor(private val handle: Long) : Handle("decoder") {
    /** Opens a step graph, at the start of a text. */
    constructor(path: String, options: Options = Options()) :
        this(Native.open(forC(path), options.threads, options.companions, options.maxStateBytes))

    /** Another decoder of the same opened graph, at the start of a text, for another thread: the weights are shared. */
    fun fork() = Decoder(use { Native.fork(handle) })

    override fun close() = use { Native.close(handle) }

    fun info(): Info {
        val found = use { Native.info(handle) }
        return Info(found[0], found[1], found[2], found[3], found[4], found[5], found[6], found.copyOfRange(7, found.size))
    }

    private val vocabSize = info().vocabSize

    /** Resets to the start of a text, for batch sequences; 0 keeps the batch. */
    fun reset(batch: Long = 0) = use { Native.reset(handle, batch) }

    /** Reads one token per sequence. Returns the logits of the next token, (batch, vocabSize), row-major. */
    fun step(vararg tokens: Long): FloatArray = use { Native.prefill(handle, tokens, tokens.size.toLong(), 1, vocabSize) }

    /** Reads equally many tokens of each sequence. Returns the logits of the next token, (batch, vocabSize). */
    fun prefill(vararg rows: LongArray): FloatArray {
        val length = rows.firstOrNull()?.size ?: 0
        rows.find { it.size != length }?.let {
            throw T2rException(
                Kind.BATCH, "expected rows of one length; received $length and ${it.size} tokens; read them one by one",
            )
        }
        val tokens = rows.flatMap { it.asIterable() }.toLongArray()
        return use { Native.prefill(handle, tokens, rows.size.toLong(), length.toLong(), vocabSize) }
    }

    /** Drops, repeats or reorders the sequences. The batch becomes the number of rows. */
    fun reorder(vararg rows: Long) = use { Native.reorder(handle, rows) }

    /**
     * Reads a prompt, and generates up to maxTokens tokens. The last is chosen but not read: begin the next call with it.
     * callback gets each token as it is chosen; false ends the text there, and so does an exception, which is rethrown.
     * Without a callback, a generation graph, if there is one, generates all in one run.
     */
    fun generate(prompt: LongArray, maxTokens: Long, sampling: Sampling = Sampling(), callback: ((Long) -> Boolean)? = null): LongArray {
        val reals = listOf(sampling.temperature, sampling.topP, sampling.minP, sampling.repetitionPenalty)
            .map { it ?: Double.MAX_VALUE }.toDoubleArray()
        val wholes = listOf(sampling.topK, sampling.noRepeatNgram, sampling.seed).map { it ?: Long.MIN_VALUE }.toLongArray()
        val next = callback?.let { Callback(it) }
        return use { Native.generate(handle, prompt, maxTokens, reals, wholes, sampling.stopTokens, next) }
    }

    /** Writes the states to a file, and a token that was chosen but not read, or -1. */
    fun save(path: String, token: Long = -1) = use { Native.save(handle, forC(path), token) }

    /** Continues from such a file, of any language's runtime. Returns the saved token, or -1. */
    fun load(path: String): Long = use { Native.load(handle, forC(path)) }

    /** The tokenizer in the graph's metadata. */
    fun tokenizer() = Tokenizer(use { Native.openTokenizer(handle) })
}

private fun forC(path: String): ByteArray {
    if ('\u0000' in path) {
        throw T2rException(Kind.FILE, "expected a path; received one with a zero byte in it; name a file")
    }
    return path.encodeToByteArray() + 0
}
