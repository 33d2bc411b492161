import java.nio.file.Path;
import t2r.Decoder;
import t2r.Sampling;
import t2r.T2rException;

/** Story GRAPH PROMPT: a story as it is written, piece by piece. */
public class Story {
    public static void main(String[] arguments) {
        if (arguments.length != 2) {
            System.err.println("usage: Story GRAPH PROMPT");
            System.exit(2);
        }
        try (var decoder = Decoder.open(Path.of(arguments[0])); var tokenizer = decoder.tokenizer()) {
            long[] prompt = tokenizer.encode(arguments[1]);
            try (var stream = tokenizer.stream(prompt)) {
                System.out.print(arguments[1]);
                decoder.generate(prompt, 200, Sampling.greedy(), token -> {
                    System.out.print(stream.feed(token));
                    System.out.flush();
                    return true;
                });
                System.out.println(stream.end());
            }
        } catch (T2rException error) {
            System.err.println(error.getMessage()); // one line: its kind, what was expected, what was received, what to do
            System.exit(2);
        }
    }
}
