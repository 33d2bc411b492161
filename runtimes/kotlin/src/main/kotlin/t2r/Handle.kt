package t2r

import java.util.concurrent.atomic.AtomicBoolean

/** Error kinds, with the same names in every language's runtime. */
enum class Kind {
    FILE, GRAPH, VERSION, METADATA, INTERFACE, WEIGHTS, TOKENIZER, TOKEN, POSITION, BATCH, SNAPSHOT, SAMPLING, PROVIDER,
    ARGUMENT, STATE, MEMORY, RUNTIME, CANCELLED;

    override fun toString() = name.lowercase()
}

/** Every failure: a kind, and one line that says what was expected, what was received, what to do. */
class T2rException internal constructor(val kind: Kind, line: String) : RuntimeException("$kind: $line") {
    /** Called by t2r_jni.c. */
    @Suppress("unused")
    internal constructor(kind: Int, line: ByteArray) : this(Kind.entries.getOrElse(kind - 1) { Kind.RUNTIME }, String(line))
}

/** A native handle, used by one thread at a time: concurrent use is an error, and so is use after close. */
abstract class Handle internal constructor(private val name: String) : AutoCloseable {
    private val busy = AtomicBoolean()

    internal fun <T> use(call: () -> T): T {
        if (!busy.compareAndSet(false, true)) {
            throw T2rException(
                Kind.STATE,
                "expected one call at a time in a $name; received another, from a second thread or a callback; " +
                    "give each thread one of its own",
            )
        }
        try {
            return call()
        } finally {
            busy.set(false)
        }
    }
}
