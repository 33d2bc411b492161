package t2r;

/**
 * A state.
 *
 * @param dtype float32, float16, int32 or int64
 * @param data row by row, in this machine's order
 */
public record Tensor(String name, String dtype, long[] shape, byte[] data) {}
