package t2r

/** The functions of t2r_jni.c. Paths are zero-terminated, texts are UTF-8, handles are numbers. */
internal object Native {
    init {
        System.loadLibrary("t2r_jni")
    }

    external fun open(path: ByteArray, threads: Int, companions: Boolean, maxStateBytes: Long): Long
    external fun fork(decoder: Long): Long
    external fun close(decoder: Long)
    external fun info(decoder: Long): LongArray
    external fun reset(decoder: Long, batch: Long)
    external fun prefill(decoder: Long, tokens: LongArray, batch: Long, length: Long, vocabSize: Long): FloatArray
    external fun reorder(decoder: Long, rows: LongArray)
    external fun generate(
        decoder: Long, prompt: LongArray, maxTokens: Long, reals: DoubleArray, wholes: LongArray, stops: LongArray?, callback: Callback?,
    ): LongArray
    external fun save(decoder: Long, path: ByteArray, token: Long)
    external fun load(decoder: Long, path: ByteArray): Long

    external fun openTokenizer(decoder: Long): Long
    external fun closeTokenizer(tokenizer: Long)
    external fun encode(tokenizer: Long, text: ByteArray, special: Boolean): LongArray
    external fun decode(tokenizer: Long, tokens: LongArray): ByteArray
    external fun openStream(tokenizer: Long, prompt: LongArray): Long
    external fun feed(stream: Long, token: Long): ByteArray
    external fun end(stream: Long): ByteArray
    external fun closeStream(stream: Long)
}

/** Called by t2r_jni.c with each token. */
internal fun interface Callback {
    fun next(token: Long): Boolean
}
