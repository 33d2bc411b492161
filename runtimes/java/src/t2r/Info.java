package t2r;

/**
 * Properties of a graph, and the progress of its decoder.
 *
 * @param batch current number of sequences
 * @param fixedBatch the only batch that the graph takes; 0: any
 * @param position tokens read by the furthest sequence
 * @param maxPositions position after which a step is refused; 0: no limit
 * @param bosToken -1: none
 * @param topK how many logits {@link Decoder#topK} returns; 0: the graph has no such outputs
 * @param states number of states
 * @param checkpoint its SHA-256
 * @param prefills whether there is a prefill graph
 * @param translates whether the graph is a translator's
 * @param chats whether {@link Decoder#metadata} has "t2r.chat_template"
 * @param inputSize elements of the vectors that {@link Decoder#readVectors} takes; 0: the graph reads tokens
 */
public record Info(
        long vocabSize, long batch, long fixedBatch, long position, long maxPositions, long bosToken, long[] eosTokens,
        long topK, long states, String checkpoint, boolean prefills, boolean translates, boolean chats,
        long inputSize) {}
