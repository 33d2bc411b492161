package t2r;

/** A translation that a search found. */
public record Translation(long[] tokens, double score) {}
