import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Consumer;
import t2r.Decoder;
import t2r.Log;
import t2r.Options;
import t2r.Sampling;
import t2r.T2rException;
import t2r.Tensor;

/** Misuse FOLDER NAME: one misuse of the golden files of FOLDER, and its result. */
public class Misuse {
    private static Path folder;

    private interface Act {
        void run() throws Exception;
    }

    private static final Map<String, Act> MISUSES = Map.ofEntries(
            Map.entry("no-file", () -> open("nowhere")),
            Map.entry("prefill-graph", () -> open("bad/role")),
            Map.entry("token", () -> open("tiny").step(17)),
            Map.entry("batch", () -> open("tiny").step(1, 2)),
            Map.entry("rows", () -> open("tiny").prefill(new long[] {1, 2}, new long[] {1})),
            Map.entry("position", Misuse::position),
            Map.entry("other-model", () -> open("tiny").load(folder.resolve("packed.state"))),
            Map.entry("state-name", Misuse::stateName),
            Map.entry("no-utf8", () -> open("bytes").tokenizer().encode("\ud800")),
            Map.entry("closed", Misuse::closed),
            Map.entry("closed-tokenizer", Misuse::closedTokenizer),
            Map.entry("two-threads", Misuse::twoThreads),
            Map.entry("from-a-callback", Misuse::fromACallback),
            Map.entry("provider", () -> open(options -> options.provider = List.of("CPU", "a", "b"))),
            Map.entry("session-option", () -> open(options -> {
                options.threads = 2;
                options.config = List.of("session.intra_op_thread_affinities", "everywhere");
            })),
            Map.entry("long-source", Misuse::longSource),
            Map.entry("late-threads", () -> {
                open("tiny");
                Options.shareThreads(2);
            }),
            Map.entry("no-graph-in-memory", () -> Decoder.openMemory(
                    new LinkedHashMap<>(Map.of("tiny.onnx", new byte[] {1, 2, 3})), new Options())),
            Map.entry("damaged-in-memory", Misuse::damagedInMemory),
            Map.entry("empty-stop", () -> open("bytes").tokenizer().stream().stopAt("")),
            Map.entry("zero-byte-stop", () -> open("bytes").tokenizer().stream().stopAt("\0")),
            Map.entry("copied", Misuse::copied),
            Map.entry("taken", Misuse::taken),
            Map.entry("cancelled", Misuse::cancelled),
            Map.entry("vectors", Misuse::vectors),
            Map.entry("log", Misuse::log),
            Map.entry("callback", Misuse::callback));

    public static void main(String[] arguments) throws Exception {
        folder = Path.of(arguments[0]);
        try {
            MISUSES.get(arguments[1]).run();
        } catch (T2rException error) {
            System.err.println(error.getMessage());
            System.exit(2);
        }
    }

    private static Decoder open(String name) {
        return Decoder.open(folder.resolve(name + ".onnx"));
    }

    private static void open(Consumer<Options> change) {
        Options options = new Options();
        change.accept(options);
        Decoder.open(folder.resolve("tiny.onnx"), options);
    }

    private static void damagedInMemory() {
        var decoder = open("tiny");
        byte[] saved = decoder.saveMemory(-1);
        decoder.loadMemory(Arrays.copyOfRange(saved, 1, saved.length));
    }

    private static void vectors() {
        var decoder = open("ear");
        decoder.reset(2);
        float[] given = {0.5f, 1, -1, 2, 0, 1, 1, 0, 0, -2}, other = {3, 1, 0, 1, 1, 0.25f, 1, 1, 2, 3};
        for (float logit : decoder.readVectors(given, other)) {
            System.out.println(logit);
        }
        decoder.readVectors(Arrays.copyOf(given, 6), Arrays.copyOf(other, 6));
    }

    private static void log() {
        var count = new AtomicLong();
        Log.set(Log.Level.VERBOSE, (level, message) -> count.addAndGet(message.length()));
        open("tiny").close();
        Log.clear();
        long heard = count.get();
        open("tiny").close();
        System.out.println((heard > 0) + " " + (count.get() == heard));
    }

    private static void position() {
        var decoder = open("ends");
        for (int step = 0; step <= 40; step++) {
            decoder.step(1, 2);
        }
    }

    private static void copied() {
        var decoder = open("ends");
        for (int step = 0; step < 40; step++) {
            decoder.step(1, 2);
        }
        decoder.copy().step(1, 2);
    }

    private static void taken() {
        var decoder = open("tiny");
        decoder.step(1);
        decoder.take(new Decoder.Row(decoder, 0), new Decoder.Row(decoder.fork(), 0));
        var logits = decoder.step(1, 2);
        decoder.choose(Arrays.copyOfRange(logits, logits.length / 2, logits.length), 1, Sampling.greedy(), 0);
        decoder.take(new Decoder.Row(open("tiny"), 0));
    }

    private static void cancelled() {
        var decoder = open("tiny");
        decoder.generate(new long[] {1}, 2, Sampling.greedy(), token -> {
            decoder.cancel();
            return true;
        });
    }

    private static void stateName() {
        var decoder = open("tiny");
        var states = new ArrayList<Tensor>(decoder.states());
        Tensor first = states.get(0);
        states.set(0, new Tensor(first.name() + "\0", first.dtype(), first.shape(), first.data()));
        decoder.setStates(states, 0);
    }

    private static void longSource() {
        var options = new Options();
        options.maxSource = 2L;
        Decoder.open(folder.resolve("translator.onnx"), options).encodeSources(new long[] {1, 2, 3});
    }

    private static void closed() {
        var decoder = open("tiny");
        decoder.close();
        decoder.step(1);
    }

    private static void closedTokenizer() {
        var tokenizer = open("bytes").tokenizer();
        tokenizer.close();
        tokenizer.encode("a");
    }

    private static void twoThreads() throws InterruptedException {
        var decoder = open("tiny");
        var inside = new CountDownLatch(1);
        var forever = new CountDownLatch(1);
        Thread other = new Thread(() -> decoder.generate(new long[] {1}, 2, Sampling.greedy(), token -> {
            inside.countDown();
            try {
                forever.await();
            } catch (InterruptedException error) {
                return false;
            }
            return true;
        }));
        other.setDaemon(true);
        other.start();
        inside.await();
        decoder.step(1);
    }

    private static void fromACallback() {
        var decoder = open("tiny");
        decoder.generate(new long[] {1}, 2, Sampling.greedy(), token -> decoder.step(1).length > 0);
    }

    private static void callback() {
        var decoder = open("tiny");
        try {
            decoder.generate(new long[] {1}, 5, Sampling.greedy(), token -> {
                throw new IllegalStateException("mine");
            });
        } catch (IllegalStateException error) {
            System.out.println(error.getMessage());
        }
        decoder.step(1); // no longer in use
    }
}
