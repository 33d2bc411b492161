package t2r

/** Text to tokens and back. It may outlive its decoder. */
class Tokenizer internal constructor(private val handle: Long) : Handle("tokenizer") {
    override fun close() = use { Native.closeTokenizer(handle) }

    /** The tokens of a text; special: with the tokenizer's special tokens around it. */
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

    /** Streams the text of tokens that follow a prompt, without the prompt's text. */
    fun stream(vararg prompt: Long) = TextStream(use { Native.openStream(handle, prompt) })
}

/** Streams text token by token, never half a character. It may outlive its tokenizer. */
class TextStream internal constructor(private val handle: Long) : Handle("stream") {
    override fun close() = use { Native.closeStream(handle) }

    /** The text that this token completes, perhaps empty. */
    fun feed(token: Long): String = use { Native.feed(handle, token) }.decodeToString()

    /** The text held back for the rest of a character. */
    fun end(): String = use { Native.end(handle) }.decodeToString()
}
