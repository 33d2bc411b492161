package conformance;

import static conformance.Wrong.require;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.stream.DoubleStream;
import java.util.stream.LongStream;
import t2r.Decoder;
import t2r.Tensor;

/** An object of a golden file. */
record Golden(Map<String, Object> pairs) {
    static Golden read(Path path) throws IOException {
        return of(Json.parse(Files.readString(path)));
    }

    @SuppressWarnings("unchecked")
    static Golden of(Object value) {
        require(value instanceof Map, "no object in the golden file");
        return new Golden((Map<String, Object>) value);
    }

    boolean has(String key) {
        return pairs.containsKey(key);
    }

    Object at(String key) {
        require(has(key), "no " + key + " in the golden file");
        return pairs.get(key);
    }

    Golden object(String key) {
        return of(at(key));
    }

    String text(String key) {
        return (String) at(key);
    }

    long whole(String key) {
        return (Long) at(key);
    }

    double real(String key) {
        return ((Number) at(key)).doubleValue();
    }

    List<?> list(String key) {
        return (List<?>) at(key);
    }

    List<Golden> objects(String key) {
        return list(key).stream().map(Golden::of).toList();
    }

    long[] wholes(String key) {
        return wholes(at(key));
    }

    String[] texts(String key) {
        return list(key).toArray(String[]::new);
    }

    long[][] rows(String key) {
        return list(key).stream().map(Golden::wholes).toArray(long[][]::new);
    }

    static long[] wholes(Object list) {
        return ((List<?>) list).stream().mapToLong(number -> ((Number) number).longValue()).toArray();
    }

    Array array(String key) {
        Golden value = object(key);
        double[] data = value.list("data").stream().mapToDouble(number -> ((Number) number).doubleValue()).toArray();
        return new Array(value.wholes("shape"), data);
    }

    /** Row-major. */
    record Array(long[] shape, double[] data) {
        Array {
            long count = LongStream.of(shape).reduce(1, (one, other) -> one * other);
            require(count == data.length, "an array of another size than its shape");
        }

        int length() {
            return (int) shape[1];
        }

        /** One T of an array (B, T, N) or (B, T), rows concatenated. */
        double[] column(int t) {
            int size = shape.length == 3 ? (int) shape[2] : 1;
            double[] found = new double[(int) shape[0] * size];
            for (int row = 0; row < shape[0]; row++) {
                System.arraycopy(data, (row * length() + t) * size, found, row * size, size);
            }
            return found;
        }

        /** Tokens (B, T) of a range of T: one list per sequence. */
        long[][] tokens(int from, int to) {
            long[][] rows = new long[(int) shape[0]][to - from];
            for (int row = 0; row < shape[0]; row++) {
                for (int t = from; t < to; t++) {
                    rows[row][t - from] = (long) data[row * length() + t];
                }
            }
            return rows;
        }

        /** The tokens of one T. */
        long[] tokens(int t) {
            return whole(column(t));
        }

        static long[] whole(double[] numbers) {
            return DoubleStream.of(numbers).mapToLong(number -> (long) number).toArray();
        }
    }

    /** Compares these states with a decoder's. */
    void compare(Decoder decoder, double relative) {
        for (Tensor state : decoder.states()) {
            if (has(state.name())) {
                Array wanted = array(state.name());
                double largest = DoubleStream.of(wanted.data).map(Math::abs).max().orElse(0);
                Wrong.same(state.shape(), wanted.shape, "the shape of " + state.name());
                Wrong.near(numbers(state), wanted.data, relative * largest, state.name());
            }
        }
        List<String> names = decoder.states().stream().map(Tensor::name).toList();
        require(names.containsAll(pairs.keySet()), "states that the graph has not");
    }

    /** Sets a decoder's states to these. */
    void set(Decoder decoder) {
        List<Tensor> given = new ArrayList<>();
        for (Tensor state : decoder.states()) {
            Array wanted = array(state.name());
            ByteBuffer bytes = ByteBuffer.allocate(wanted.data.length * size(state)).order(ByteOrder.nativeOrder());
            for (double number : wanted.data) {
                switch (state.dtype()) {
                    case "float32" -> bytes.putFloat((float) number);
                    case "int32" -> bytes.putInt((int) number);
                    default -> bytes.putLong((long) number);
                }
            }
            given.add(new Tensor(state.name(), state.dtype(), wanted.shape, bytes.array()));
        }
        decoder.setStates(given, 0);
    }

    /** A state's elements. No golden file has an integer that float rounds, nor states of float16. */
    static float[] numbers(Tensor state) {
        ByteBuffer bytes = ByteBuffer.wrap(state.data()).order(ByteOrder.nativeOrder());
        float[] found = new float[state.data().length / size(state)];
        for (int i = 0; i < found.length; i++) {
            found[i] = switch (state.dtype()) {
                case "float32" -> bytes.getFloat();
                case "int32" -> bytes.getInt();
                default -> bytes.getLong();
            };
        }
        return found;
    }

    private static int size(Tensor state) {
        return state.dtype().equals("int64") ? Long.BYTES : Float.BYTES;
    }
}
