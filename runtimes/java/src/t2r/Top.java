package t2r;

/** The largest logits, (batch, topK), and their tokens. */
public record Top(float[] logits, long[] tokens) {}
