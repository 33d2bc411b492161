package conformance;

import java.util.Arrays;
import java.util.Objects;

/** Why a case has failed. */
final class Wrong extends RuntimeException {
    private static final long serialVersionUID = 1;

    Wrong(String why) {
        super(why);
    }

    static void require(boolean good, String why) {
        if (!good) {
            throw new Wrong(why);
        }
    }

    static void same(Object found, Object wanted, String what) {
        require(Objects.equals(found, wanted), what + ": " + brief(found) + " for " + brief(wanted));
    }

    static void same(long[] found, long[] wanted, String what) {
        require(Arrays.equals(found, wanted), what + ": " + brief(Arrays.toString(found)) + " for " + brief(Arrays.toString(wanted)));
    }

    static void near(float[] found, double[] wanted, double bound, String what) {
        same(found.length, wanted.length, what);
        for (int i = 0; i < wanted.length; i++) {
            double off = Math.abs(found[i] - wanted[i]);
            require(off <= bound, what + ": off by " + off + " of " + bound);
        }
    }

    private static String brief(Object value) {
        String text = String.valueOf(value);
        return text.substring(0, Math.min(text.length(), 100));
    }
}
