package t2r;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_BYTE;
import static java.lang.foreign.ValueLayout.JAVA_LONG;
import static t2r.Native.check;
import static t2r.Native.numbers;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.CharBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;

/** Text to tokens and back. It may outlive its decoder. */
public final class Tokenizer extends Handle {
    Tokenizer(MemorySegment handle) {
        super(handle, "tokenizer", Declarations.CLOSE_TOKENIZER);
    }

    /**
     * A tokenizer from the text of a tokenizer.json.
     *
     * @param bosToken what an empty text becomes, or -1
     */
    public static Tokenizer of(String json, long bosToken) {
        return new Tokenizer(make(arena -> {
            MemorySegment text = utf8(arena, json), opened = arena.allocate(ADDRESS);
            check((int) Declarations.MAKE_TOKENIZER.invokeExact(text, text.byteSize(), bosToken, opened));
            return opened.get(ADDRESS, 0);
        }));
    }

    /** The tokens of a text, with the tokenizer's special tokens around it. */
    public long[] encode(String text) {
        return encode(text, 1);
    }

    /** The same without special tokens around the text. */
    public long[] encodePlain(String text) {
        return encode(text, 0);
    }

    private long[] encode(String text, int special) {
        return use(arena -> {
            MemorySegment bytes = utf8(arena, text), tokens = arena.allocate(ADDRESS), count = arena.allocate(JAVA_LONG);
            check((int) Declarations.ENCODE.invokeExact(handle, bytes, bytes.byteSize(), special, tokens, count));
            return numbers(tokens.get(ADDRESS, 0), count.get(JAVA_LONG, 0));
        });
    }

    /** The text of tokens, without special ones. */
    public String decode(long... tokens) {
        return use(arena -> {
            MemorySegment text = arena.allocate(ADDRESS), size = arena.allocate(JAVA_LONG);
            check((int) Declarations.DECODE.invokeExact(handle, numbers(arena, tokens), (long) tokens.length, text, size));
            return Native.text(text.get(ADDRESS, 0), size.get(JAVA_LONG, 0));
        });
    }

    /** Streams the text of tokens that follow a prompt, without the prompt's text. */
    public TextStream stream(long... prompt) {
        return new TextStream(use(arena -> {
            MemorySegment opened = arena.allocate(ADDRESS);
            check((int) Declarations.OPEN_STREAM.invokeExact(handle, numbers(arena, prompt), (long) prompt.length, opened));
            return opened.get(ADDRESS, 0);
        }));
    }

    private static MemorySegment utf8(Arena arena, String text) {
        try {
            return arena.allocateFrom(JAVA_BYTE, bytes(text));
        } catch (CharacterCodingException error) {
            throw new T2rException(Kind.TOKENIZER, "expected text in UTF-8; received half a surrogate pair; pass whole characters");
        }
    }

    private static byte[] bytes(String text) throws CharacterCodingException {
        var encoded = StandardCharsets.UTF_8.newEncoder().encode(CharBuffer.wrap(text));
        byte[] bytes = new byte[encoded.remaining()];
        encoded.get(bytes);
        return bytes;
    }
}
