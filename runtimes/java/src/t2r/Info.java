package t2r;

/**
 * What a graph says of itself, and where its decoder stands.
 *
 * @param batch sequences side by side, now
 * @param fixedBatch the only number of them that the graph takes; 0: any
 * @param position tokens read by the furthest sequence
 * @param maxPositions after which a step is refused; 0: there is no end
 * @param bosToken -1: none
 * @param topK how many {@link Decoder#topK} gives; 0: the graph has no such outputs
 * @param states how many states there are
 * @param checkpoint its SHA-256
 * @param prefills whether a prefill graph lies beside
 * @param generates whether a generation graph does
 * @param translates whether it is a translator's
 * @param chats whether {@link Decoder#metadata} has "t2r.chat_template"
 */
public record Info(
        long vocabSize, long batch, long fixedBatch, long position, long maxPositions, long bosToken, long[] eosTokens,
        long topK, long states, String checkpoint, boolean prefills, boolean generates,
        boolean translates, boolean chats) {}
