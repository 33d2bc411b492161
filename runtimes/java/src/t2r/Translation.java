package t2r;

/** One that a search found. */
public record Translation(long[] tokens, double score) {}
