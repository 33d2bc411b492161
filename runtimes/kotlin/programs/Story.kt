import kotlin.system.exitProcess
import t2r.Decoder
import t2r.Sampling
import t2r.T2rException

/** Story GRAPH PROMPT: a story as it is written, piece by piece. */
fun main(arguments: Array<String>) {
    val (graph, prompt) = arguments
    try {
        Decoder(graph).use { decoder ->
            decoder.tokenizer().use { tokenizer ->
                val tokens = tokenizer.encode(prompt)
                tokenizer.stream(*tokens).use { stream ->
                    print(prompt)
                    decoder.generate(tokens, 200, Sampling.GREEDY) { token ->
                        print(stream.feed(token))
                        true
                    }
                    println(stream.end())
                }
            }
        }
    } catch (error: T2rException) {
        System.err.println(error.message)
        exitProcess(2)
    }
}
