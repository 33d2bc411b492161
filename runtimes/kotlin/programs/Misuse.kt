import java.util.concurrent.CountDownLatch
import kotlin.concurrent.thread
import kotlin.system.exitProcess
import t2r.Decoder
import t2r.Sampling
import t2r.T2rException

/** Misuse FOLDER NAME: one misuse of the golden files of FOLDER, and its result. */
object Misuse {
    private lateinit var folder: String

    private fun open(name: String) = Decoder("$folder/$name.onnx")

    private val misuses: Map<String, () -> Unit> = mapOf(
        "no-file" to { open("nowhere") },
        "zero-byte" to { open("tiny\u0000") },
        "prefill-graph" to { open("bad/role") },
        "token" to { open("tiny").step(17) },
        "batch" to { open("tiny").step(1, 2) },
        "rows" to { open("tiny").prefill(longArrayOf(1, 2), longArrayOf(1)) },
        "position" to { open("ends").run { repeat(41) { step(1, 2) } } },
        "other-model" to { open("tiny").load("$folder/packed.state") },
        "no-utf8" to { open("bytes").tokenizer().encode("\ud800") },
        "closed" to { open("tiny").run { close(); step(1) } },
        "closed-tokenizer" to { open("bytes").tokenizer().run { close(); encode("a") } },
        "two-threads" to ::twoThreads,
        "from-a-callback" to { open("tiny").run { generate(longArrayOf(1), 2) { step(1).isNotEmpty() } } },
        "callback" to ::callback,
    )

    private fun twoThreads() {
        val decoder = open("tiny")
        val inside = CountDownLatch(1)
        thread(isDaemon = true) {
            decoder.generate(longArrayOf(1), 2, Sampling.GREEDY) {
                inside.countDown()
                CountDownLatch(1).await()
                true
            }
        }
        inside.await()
        decoder.step(1)
    }

    private fun callback() {
        val decoder = open("tiny")
        try {
            decoder.generate(longArrayOf(1), 5) { error("mine") }
        } catch (error: IllegalStateException) {
            println(error.message)
        }
        decoder.step(1) // no longer in use
    }

    @JvmStatic
    fun main(arguments: Array<String>) {
        folder = arguments[0]
        try {
            misuses.getValue(arguments[1])()
        } catch (error: T2rException) {
            System.err.println(error.message)
            exitProcess(2)
        }
    }
}
