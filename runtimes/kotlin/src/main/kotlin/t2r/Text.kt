package t2r

/** Text to tokens and back. It outlives the decoder that it is of. */
class Tokenizer internal constructor(private val handle: Long) : Handle("tokenizer") {
    override fun close() = use { Native.closeTokenizer(handle) }

    /** The tokens of a text; special: with those around it that the tokenizer itself puts there. */
    fun encode(text: String, special: Boolean = true): LongArray {
        val bytes = try {
            text.encodeToByteArray(throwOnInvalidSequence = true)
        } catch (error: CharacterCodingException) {
            throw T2rException(Kind.TOKENIZER, "expected text in UTF-8; received half a surrogate pair; give whole characters")
        }
        return use { Native.encode(handle, bytes, special) }
    }

    /** The text of tokens, without special ones. */
    fun decode(vararg tokens: Long): String = use { Native.decode(handle, tokens) }.decodeToString()

    /** The text of the tokens that follow a prompt, which is not handed out again. */
    fun stream(vararg prompt: Long) = TextStream(use { Native.openStream(handle, prompt) })
}

/** Text as tokens come, never with half a character in it. It outlives its tokenizer. */
class TextStream internal constructor(private val handle: Long) : Handle("stream") {
    override fun close() = use { Native.closeStream(handle) }

    /** What this token completes; perhaps nothing. */
    fun feed(token: Long): String = use { Native.feed(handle, token) }.decodeToString()

    /** What was still waiting for the rest of a character. */
    fun end(): String = use { Native.end(handle) }.decodeToString()
}
