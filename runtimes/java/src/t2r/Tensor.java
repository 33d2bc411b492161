package t2r;

/**
 * A state.
 *
 * @param dtype float32, float16, int8, int32 or int64
 * @param data row-major, in native byte order
 */
public record Tensor(String name, String dtype, long[] shape, byte[] data) {}
