package conformance;

import static conformance.Wrong.near;
import static conformance.Wrong.require;
import static conformance.Wrong.same;

import conformance.Golden.Array;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import t2r.Beam;
import t2r.Decoder;
import t2r.Kind;
import t2r.Options;
import t2r.Sampling;
import t2r.T2rException;
import t2r.Tensor;
import t2r.TextStream;
import t2r.Top;
import t2r.Translation;

/** The kinds of cases: runtimes/contract/conformance.md. */
final class Cases {
    private Cases() {}

    interface Case {
        void run(Golden golden, Path folder) throws IOException;
    }

    static final Map<String, Case> KINDS = Map.of(
            "trace", Cases::trace, "sampling", Cases::sampling, "calls", Cases::calls, "snapshot", Cases::snapshot,
            "tokenizer", Cases::tokenizer, "stream", Cases::stream, "translator", Cases::translator, "bad", Cases::bad);

    private static Decoder open(Golden golden, Path folder) {
        return Decoder.open(folder.resolve(golden.text("graph")));
    }

    private static double logitsBound(Golden golden) {
        return golden.object("tolerance").real("logits_absolute");
    }

    private static double stateBound(Golden golden) {
        return golden.object("tolerance").real("state_relative_to_its_largest");
    }

    private static void trace(Golden golden, Path folder) {
        try (Decoder decoder = open(golden, folder)) {
            long[] ones = new long[golden.array("ids").length()];
            Arrays.fill(ones, 1);
            pieces(decoder, golden, ones);
            if (golden.has("cuts")) {
                pieces(decoder, golden, golden.wholes("cuts"));
            }
            if (golden.has("top")) {
                top(decoder, golden);
            }
            if (golden.has("greedy")) {
                long[] wanted = golden.object("greedy").wholes("tokens");
                Sampling sampling = Sampling.greedy();
                sampling.stopTokens = new long[0];
                decoder.reset(1);
                same(decoder.generate(golden.object("greedy").wholes("prompt"), wanted.length, sampling), wanted, "greedy tokens");
            }
        }
    }

    /** Reads a trace in pieces of these lengths; checks the logits after each, and the states after the last. */
    private static void pieces(Decoder decoder, Golden golden, long[] lengths) {
        Array ids = golden.array("ids"), logits = golden.array("logits");
        golden.object("start").set(decoder);
        int read = 0;
        for (long length : lengths) {
            int end = read + (int) length;
            float[] found = length == 1 ? decoder.step(ids.tokens(read)) : decoder.prefill(ids.tokens(read, end));
            read = end;
            near(found, logits.column(read - 1), logitsBound(golden), "logits after " + read + " tokens");
        }
        same(read, ids.length(), "tokens read");
        golden.object("end").compare(decoder, stateBound(golden));
    }

    private static void top(Decoder decoder, Golden golden) {
        Array ids = golden.array("ids"), logits = golden.object("top").array("logits"), tokens = golden.object("top").array("tokens");
        golden.object("start").set(decoder);
        for (int t = 0; t < ids.length(); t++) {
            Top found = decoder.topK(ids.tokens(t, t + 1));
            near(found.logits(), logits.column(t), logitsBound(golden), "largest logits");
            same(found.tokens(), Array.whole(tokens.column(t)), "largest tokens");
        }
    }

    private static void sampling(Golden golden, Path folder) {
        try (Decoder decoder = open(golden, folder)) {
            for (Golden text : golden.objects("texts")) {
                long[] prompt = text.wholes("prompt"), wanted = text.wholes("tokens");
                Sampling options = options(text.object("options"));
                decoder.reset(1);
                same(decoder.generate(prompt, text.whole("max_tokens"), options), wanted, "tokens without a callback");
                decoder.reset(1);
                same(decoder.generate(prompt, text.whole("max_tokens"), options, token -> true), wanted, "tokens with a callback");
                if (wanted.length > 1) {
                    decoder.reset(1);
                    cancelled(decoder, prompt, text.whole("max_tokens"), options);
                    same(decoder.written(), Arrays.copyOf(wanted, 1), "tokens before it was cancelled");
                }
            }
        }
    }

    /** A text that its callback cancels at the first token. */
    private static void cancelled(Decoder decoder, long[] prompt, long maxTokens, Sampling options) {
        try {
            decoder.generate(prompt, maxTokens, options, token -> {
                decoder.cancel();
                return true;
            });
        } catch (T2rException error) {
            same(error.kind(), Kind.CANCELLED, "a text that is cancelled");
            return;
        }
        throw new Wrong("a text that is not cancelled");
    }

    private static Sampling options(Golden given) {
        Sampling made = new Sampling();
        for (String name : given.pairs().keySet()) {
            switch (name) {
                case "temperature" -> made.temperature = given.real(name);
                case "top_k" -> made.topK = given.whole(name);
                case "top_p" -> made.topP = given.real(name);
                case "min_p" -> made.minP = given.real(name);
                case "repetition_penalty" -> made.repetitionPenalty = given.real(name);
                case "no_repeat_ngram" -> made.noRepeatNgram = given.whole(name);
                case "seed" -> made.seed = given.whole(name);
                case "stop_tokens" -> made.stopTokens = given.wholes(name);
                default -> throw new Wrong("an option that is not known, " + name);
            }
        }
        return made;
    }

    private static void calls(Golden golden, Path folder) {
        try (Decoder decoder = open(golden, folder)) {
            for (Golden call : golden.objects("operations")) {
                String kind = "", wanted = call.has("error") ? call.text("error") : "";
                try {
                    float[] logits = call(decoder, call, folder);
                    if (call.has("logits")) {
                        near(logits, call.array("logits").data(), logitsBound(golden), "logits");
                    }
                } catch (T2rException error) {
                    kind = error.kind().toString();
                }
                same(kind, wanted, "the error of " + call.pairs());
                if (call.has("position")) {
                    same(decoder.info().position(), call.whole("position"), "the position");
                }
            }
            golden.object("end").compare(decoder, stateBound(golden));
        }
    }

    /** One call of a decoder, by the key that names it: its logits, or null. */
    private static float[] call(Decoder decoder, Golden call, Path folder) {
        if (call.has("step")) {
            return decoder.step(call.wholes("step"));
        }
        if (call.has("prefill")) {
            return decoder.prefill(call.rows("prefill"));
        }
        if (call.has("reset")) {
            decoder.reset(call.whole("reset"));
        } else if (call.has("adapt")) {
            decoder.adapt(call.texts("adapt"));
        } else if (call.has("reorder")) {
            decoder.reorder(call.wholes("reorder"));
        } else if (call.has("load")) {
            decoder.load(folder.resolve(call.text("load")));
        } else if (call.has("top_k")) {
            decoder.topK(call.rows("top_k"));
        } else {
            same(generate(decoder, call), call.wholes("tokens"), "tokens");
        }
        return null;
    }

    private static long[] generate(Decoder decoder, Golden call) {
        long[] prompt = call.wholes("generate");
        Sampling options = options(call.object("options"));
        if (!call.has("ends_at")) {
            return decoder.generate(prompt, call.whole("max_tokens"), options);
        }
        long[] seen = {0};
        return decoder.generate(prompt, call.whole("max_tokens"), options, token -> ++seen[0] < call.whole("ends_at"));
    }

    private static void snapshot(Golden golden, Path folder) throws IOException {
        Path path = folder.resolve(golden.text("snapshot")), again = Files.createTempFile("t2r", null);
        var graph = new LinkedHashMap<>(Map.of(golden.text("graph"), Files.readAllBytes(folder.resolve(golden.text("graph")))));
        try (Decoder decoder = Decoder.openMemory(graph, new Options())) {
            long token = decoder.load(path);
            same(token, golden.at("token") == null ? -1 : golden.whole("token"), "the token");
            same(decoder.info().position(), golden.whole("position"), "the position");
            for (Tensor state : decoder.states()) {
                double[] wanted = golden.object("states").array(state.name()).data();
                float[] found = Golden.numbers(state);
                for (int i = 0; i < wanted.length; i++) {
                    require(found[i] == (float) wanted[i], state.name() + " is not equal to the bit");
                }
            }
            decoder.save(again, token);
            require(Files.mismatch(again, path) < 0, "other bytes when it is saved again");
            byte[] saved = decoder.saveMemory(token);
            require(Arrays.equals(saved, Files.readAllBytes(path)), "other bytes in memory");
            decoder.reset(0);
            same(decoder.loadMemory(saved), token, "the token in memory");
            Array ids = golden.array("ids"), logits = golden.array("logits");
            for (int t = 0; t < ids.length(); t++) {
                near(decoder.step(ids.tokens(t)), logits.column(t), logitsBound(golden), "logits");
            }
        } finally {
            Files.deleteIfExists(again);
        }
    }

    private static void tokenizer(Golden golden, Path folder) {
        try (var decoder = open(golden, folder); var tokenizer = decoder.tokenizer()) {
            for (Object text : golden.list("texts")) {
                List<?> parts = (List<?>) text;
                long[] tokens = Golden.wholes(parts.get(1));
                same(tokenizer.encode((String) parts.get(0)), tokens, "tokens of " + parts.get(0));
                same(tokenizer.decode(tokens), parts.get(2), "text of " + parts.get(1));
            }
        }
    }

    private static void stream(Golden golden, Path folder) {
        try (var decoder = open(golden, folder); var tokenizer = decoder.tokenizer()) {
            for (Golden text : golden.objects("texts")) {
                try (var stream = tokenizer.stream(text.wholes("prompt"))) {
                    List<String> pieces = Arrays.stream(text.wholes("tokens")).mapToObj(stream::feed).toList();
                    same(pieces, text.list("pieces"), "pieces");
                    same(stream.end(), text.text("end"), "the end");
                    stops(tokenizer.stream(text.wholes("prompt")), text.wholes("tokens"), String.join("", pieces) + text.text("end"));
                }
            }
        }
    }

    /** A stream that stops at all of its text gives none of it. */
    private static void stops(TextStream stream, long[] tokens, String whole) {
        try (stream) {
            stream.stopAt(whole);
            for (long token : tokens) {
                same(stream.feed(token), "", "a piece before a stop");
            }
            same(stream.end(), "", "the end before a stop");
            require(stream.stopped(), "a stream that does not stop");
        }
    }

    /** With and without companions: the encoder exists in both cases. */
    private static void translator(Golden golden, Path folder) {
        Options options = new Options();
        for (boolean companions : new boolean[] {false, true}) {
            options.companions = companions;
            try (Decoder decoder = Decoder.open(folder.resolve(golden.text("graph")), options)) {
                decoder.encodeSources(golden.rows("sources"));
                golden.object("states").compare(decoder, stateBound(golden));
                for (Golden search : golden.objects("searches")) {
                    List<Translation> found = decoder.translate(search.wholes("source"), beam(search.object("beam")));
                    List<Golden> wanted = search.objects("translations");
                    same(found.size(), wanted.size(), "translations found");
                    for (int i = 0; i < wanted.size(); i++) {
                        same(found.get(i).tokens(), wanted.get(i).wholes("tokens"), "a translation");
                        require(Math.abs(found.get(i).score() - wanted.get(i).real("score")) <= 1e-4, "another score");
                    }
                }
            }
        }
    }

    private static Beam beam(Golden given) {
        Beam made = new Beam();
        for (String name : given.pairs().keySet()) {
            switch (name) {
                case "width" -> made.width = given.whole(name);
                case "max_tokens" -> made.maxTokens = given.whole(name);
                case "min_tokens" -> made.minTokens = given.whole(name);
                case "early_stopping" -> made.earlyStopping = early(given.at(name));
                case "forced_end" -> made.forcedEnd = (Boolean) given.at(name);
                case "n_best" -> made.nBest = given.whole(name);
                case "length_penalty" -> made.lengthPenalty = given.real(name);
                case "repetition_penalty" -> made.repetitionPenalty = given.real(name);
                case "no_repeat_ngram" -> made.noRepeatNgram = given.whole(name);
                case "copy" -> made.copy = (Boolean) given.at(name);
                default -> throw new Wrong("an option that is not known, " + name);
            }
        }
        return made;
    }

    private static Beam.EarlyStopping early(Object value) {
        if (value instanceof Boolean flag) {
            return flag ? Beam.EarlyStopping.YES : Beam.EarlyStopping.NO;
        }
        return Beam.EarlyStopping.NEVER;
    }

    private static void bad(Golden golden, Path folder) {
        for (Golden file : golden.objects("files")) {
            try {
                attempt(file, folder);
            } catch (T2rException error) {
                same(error.kind().toString(), file.text("kind"), file.text("file"));
                require(error.getMessage().matches(file.text("kind") + ": expected .*"), "no message of one line");
                continue;
            }
            throw new Wrong(file.text("file") + " is taken");
        }
    }

    /** Makes the call that must fail on a bad file. */
    private static void attempt(Golden file, Path folder) {
        String call = file.text("call");
        Path path = folder.resolve(file.text("file"));
        try (Decoder decoder = call.equals("snapshot") ? open(file, folder) : Decoder.open(path)) {
            switch (call) {
                case "open" -> {}
                case "tokenizer" -> decoder.tokenizer().close();
                case "encode" -> {
                    try (var tokenizer = decoder.tokenizer()) {
                        tokenizer.encode(file.text("text"));
                    }
                }
                case "snapshot" -> decoder.load(path);
                case "generate" -> decoder.generate(new long[] {1}, 3, new Sampling());
                case "prefill" -> decoder.prefill(file.rows("tokens"));
                case "translate" -> decoder.translate(file.wholes("source"), beam(file.object("beam")));
                default -> throw new Wrong("a call that is not known, " + call);
            }
        }
    }
}
