import java.nio.file.Path;
import java.util.Scanner;
import java.util.StringJoiner;
import t2r.Decoder;
import t2r.Options;

/** Greedy GRAPH THREADS TOKEN: a greedy text, asked as ../protocol.hpp says. */
public class Greedy {
    private static final int DISCARDED = 5; // turns that do not count

    public static void main(String[] arguments) {
        if (arguments.length != 3) {
            System.err.println("usage: Greedy GRAPH THREADS TOKEN");
            System.exit(2);
        }
        var options = new Options();
        options.threads = Integer.parseInt(arguments[1]);
        try (var decoder = Decoder.open(Path.of(arguments[0]), options); var input = new Scanner(System.in)) {
            System.out.println("ready");
            while (input.hasNext()) {
                boolean timed = input.next().equals("time");
                System.out.println(answer(decoder, Long.parseLong(arguments[2]), timed, input.nextInt()));
            }
        }
    }

    private static String answer(Decoder decoder, long token, boolean timed, int count) {
        var found = new StringJoiner(" ");
        decoder.reset(1);
        for (int turn = timed ? -DISCARDED : 0; turn < count; turn++) {
            long before = System.nanoTime();
            token = largest(decoder.step(token));
            double milliseconds = (System.nanoTime() - before) / 1e6;
            if (turn >= 0) found.add(timed ? Double.toString(milliseconds) : Long.toString(token));
        }
        return found.toString();
    }

    private static long largest(float[] logits) {
        int best = 0;
        for (int token = 1; token < logits.length; token++) if (logits[token] > logits[best]) best = token;
        return best;
    }
}
