#include "api.hpp"
#include "generate.hpp"
#include "log.hpp"

#include <cstdio>
#include <cstring>
#include <map>
#include <new>
#include <stdexcept>

namespace {

using namespace t2r;

constexpr const char *kind_names[] = {"ok",       "file",     "graph",    "version",  "metadata", "interface",
                                      "weights",  "tokenizer", "token",   "position", "batch",    "snapshot",
                                      "sampling", "provider", "argument", "state",    "memory",   "runtime",
                                      "cancelled"};
constexpr std::size_t max_line = 1024;
thread_local char last_error[max_line] = "";  // no std::string: storing a line must not fail

t2r_kind keep(t2r_kind kind, const char *line) noexcept {
    std::strncpy(last_error, line, max_line - 1);
    return kind;
}

constexpr const char *no_memory = "expected memory; received none; close other programs, or use a smaller model or batch";

t2r_kind keep_unknown(const char *what) noexcept {
    std::snprintf(last_error, max_line, "expected the call to go on; received %.500s; report it", what);
    for (char *at = last_error; *at; at++)
        if (*at == '\n') *at = ' ';
    return T2R_RUNTIME;
}

t2r_options default_options() {
    return {sizeof(t2r_options), 0, 1, default_state_bytes, nullptr, 0, nullptr, 0, default_source};
}

// Keys and values in turn. of: as in "a configuration".
Pairs pairs_of(const char *const *strings, size_t count, const std::string &of) {
    if (count % 2)
        fail(T2R_ARGUMENT, "a value behind each key of " + of, number(static_cast<std::int64_t>(count)) + " strings", "count both");
    Pairs pairs;
    for (size_t i = 0; i < count; i += 2) {
        require(strings[i], ("a key of " + of).c_str());
        require(strings[i + 1], ("a value of " + of).c_str());
        pairs.emplace_back(strings[i], strings[i + 1]);
    }
    return pairs;
}

Options options_of(const t2r_options *given) {
    const t2r_options found = over(default_options(), given);
    Options options;
    options.threads = found.threads;
    options.companions = found.companions != 0;
    options.max_state_bytes = found.max_state_bytes;
    if (found.max_source < 1) fail(T2R_ARGUMENT, "a max_source of at least 1", number(found.max_source), "leave it at its default");
    options.max_source = found.max_source;
    require_list(found.config, found.config_count, "keys and values of a configuration");
    options.config = pairs_of(found.config, found.config_count, "a configuration");
    require_list(found.provider, found.provider_count, "an execution provider and its options");
    if (found.provider_count == 0) return options;
    require(found.provider[0], "an execution provider's name");
    options.provider = found.provider[0];
    options.provider_options = pairs_of(found.provider + 1, found.provider_count - 1, "an execution provider's options");
    return options;
}

t2r_sampling sampling_of(const Sampling &s) {
    return {sizeof(t2r_sampling), s.temperature,        s.top_k, s.top_p,   s.min_p,
            s.repetition_penalty, s.no_repeat_ngram,    s.seed,  nullptr,   0};
}

Sampling sampling_of(const t2r_sampling &given) {
    Sampling made;
    made.temperature = given.temperature;
    made.top_k = given.top_k;
    made.top_p = given.top_p;
    made.min_p = given.min_p;
    made.repetition_penalty = given.repetition_penalty;
    made.no_repeat_ngram = given.no_repeat_ngram;
    made.seed = given.seed < 0 ? -1 : given.seed;
    return made;
}

void hand_out(const Logits &found, const float **logits) {
    if (logits) *logits = found.values;
}

t2r_decoder *add(Decoder decoder) { return decoders().add(std::make_unique<OpenDecoder>(std::move(decoder))); }

// Returns the generated tokens to the caller on success and on failure.
struct HandOut {
    const std::vector<std::int64_t> &written;
    const int64_t **tokens;
    size_t *count;

    ~HandOut() {
        *tokens = written.data();
        *count = written.size();
    }
};

// Checks the arguments; the decoder itself compares the batch before it reads.
void require_rows(const void *inputs, size_t batch, size_t length, const char *what = "tokens") {
    if (batch > 0) require_list(inputs, length, what);
    if (length >= size_t{1} << 40)
        fail(T2R_ARGUMENT, "a length below 2^40", std::to_string(length), std::string("read the ") + what + " in parts");
}

}  // namespace

namespace t2r {

Decoders &decoders() {
    static Decoders *const all = new Decoders("decoder");  // never deleted: handles may outlive main
    return *all;
}

t2r_kind remember() noexcept {
    try {
        throw;
    } catch (const Error &error) {
        return keep(error.kind, error.line.c_str());
    } catch (const std::bad_alloc &) {
        return keep(T2R_MEMORY, no_memory);
    } catch (const std::length_error &) {
        return keep(T2R_MEMORY, no_memory);
    } catch (const std::exception &error) {
        return keep_unknown(error.what());
    } catch (...) {
        return keep_unknown("an exception without a text");
    }
}

}  // namespace t2r

const char *t2r_kind_name(t2r_kind kind) {
    return kind >= T2R_OK && kind <= T2R_CANCELLED ? kind_names[kind] : "unknown";
}

const char *t2r_error(void) { return last_error; }

int32_t t2r_version(void) { return T2R_VERSION_NUMBER; }

t2r_kind t2r_set_log(t2r_log log, void *user, int32_t level) {
    return guarded([&] {
        if (level < T2R_VERBOSE || level > T2R_FATAL)
            fail(T2R_ARGUMENT, "a level from 0, T2R_VERBOSE, to 4, T2R_FATAL", number(level), "choose another");
        set_log(log, user, static_cast<OrtLoggingLevel>(level));
    });
}

t2r_kind t2r_share_threads(int32_t threads) {
    return guarded([&] { share_threads(threads); });
}

t2r_kind t2r_defaults(t2r_options *options, size_t size) {
    return guarded([&] { hand_out_options(default_options(), options, size); });
}

t2r_kind t2r_open(const char *path, const t2r_options *options, t2r_decoder **decoder) {
    return guarded([&] {
        require(path, "a path");
        require(decoder, "where to put the decoder");
        *decoder = nullptr;
        *decoder = add(Decoder(std::make_shared<Graph>(path, options_of(options))));
    });
}

t2r_kind t2r_open_memory(const t2r_file *files, size_t count, const t2r_options *options, t2r_decoder **decoder) {
    return guarded([&] {
        require(files, "files");
        require(decoder, "where to put the decoder");
        *decoder = nullptr;
        if (count == 0) fail(T2R_ARGUMENT, "at least one file, the step graph", "none", "pass it first");
        std::vector<MemoryFile> given;
        for (size_t i = 0; i < count; i++) {
            require(files[i].name, "a file's name");
            require_list(files[i].data, files[i].bytes, "a file's bytes");
            given.push_back({files[i].name, {static_cast<const char *>(files[i].data), files[i].bytes}});
        }
        *decoder = add(Decoder(std::make_shared<Graph>(given, options_of(options))));
    });
}

t2r_kind t2r_fork(t2r_decoder *decoder, t2r_decoder **other) {
    return guarded([&] {
        require(other, "where to put the decoder");
        *other = nullptr;
        const DecoderCall use(decoder);
        *other = add(Decoder(use->decoder.opened()));
    });
}

t2r_kind t2r_copy(t2r_decoder *decoder, t2r_decoder **other) {
    return guarded([&] {
        require(other, "where to put the decoder");
        *other = nullptr;
        const DecoderCall use(decoder);
        *other = add(use->decoder.copy());
    });
}

t2r_kind t2r_cancel(t2r_decoder *decoder) {
    return guarded([&] { decoders().share(decoder)->decoder.cancellation().cancel(); });
}

t2r_kind t2r_close(t2r_decoder *decoder) {
    return guarded([&] { decoders().close(decoder); });
}

t2r_kind t2r_get_info(t2r_decoder *decoder, t2r_info *info, size_t size) {
    return guarded([&] {
        const DecoderCall use(decoder);
        const Decoder &found = use->decoder;
        const Signature &signature = found.signature();
        t2r_info made = {};
        made.vocab_size = signature.vocab_size;
        made.batch = found.batch();
        made.fixed_batch = signature.batch;
        made.position = found.position();
        made.max_positions = signature.reach();
        made.bos_token = signature.bos_token;
        made.top_k = signature.top_k;
        made.states = signature.states.size();
        made.eos_count = signature.eos_tokens.size();
        made.eos_tokens = signature.eos_tokens.data();
        made.checkpoint = signature.checkpoint.c_str();
        made.prefills = found.opened()->has("prefill");
        made.translates = signature.source.has_value();
        made.chats = signature.chats;
        made.input_size = signature.input_size;
        hand_out(made, info, size);
    });
}

t2r_kind t2r_metadata(t2r_decoder *decoder, const char *key, const char **value, size_t *size) {
    return guarded([&] {
        const DecoderCall use(decoder);
        require(key, "a key");
        require(value, "where to put the value");
        const auto &all = use->decoder.opened()->metadata();
        const auto found = all.find(key);
        *value = found == all.end() ? nullptr : found->second.c_str();
        if (size) *size = found == all.end() ? 0 : found->second.size();
    });
}

t2r_kind t2r_reset(t2r_decoder *decoder, size_t batch) {
    return guarded([&] {
        const DecoderCall use(decoder);
        use->decoder.reset(batch ? static_cast<std::int64_t>(batch) : use->decoder.batch());
    });
}

t2r_kind t2r_adapt(t2r_decoder *decoder, const char *const *names, size_t count) {
    return guarded([&] {
        const DecoderCall use(decoder);
        require_list(names, count, "names of adapters");
        use->decoder.adapt({names, names + count});
    });
}

t2r_kind t2r_step(t2r_decoder *decoder, const int64_t *tokens, size_t count, const float **logits) {
    return guarded([&] {
        const DecoderCall use(decoder);
        require_list(tokens, count, "tokens");
        hand_out(use->decoder.read(tokens, static_cast<std::int64_t>(count), 1), logits);
    });
}

t2r_kind t2r_prefill(t2r_decoder *decoder, const int64_t *tokens, size_t batch, size_t length, const float **logits) {
    return guarded([&] {
        const DecoderCall use(decoder);
        require_rows(tokens, batch, length);
        hand_out(use->decoder.read(tokens, static_cast<std::int64_t>(batch), static_cast<std::int64_t>(length)), logits);
    });
}

t2r_kind t2r_top_k(t2r_decoder *decoder, const int64_t *tokens, size_t batch, size_t length, const float **logits,
                   const int64_t **chosen) {
    return guarded([&] {
        const DecoderCall use(decoder);
        require_rows(tokens, batch, length);
        const Logits found =
            use->decoder.read(tokens, static_cast<std::int64_t>(batch), static_cast<std::int64_t>(length), Wanted::top);
        hand_out(found, logits);
        if (chosen) *chosen = found.tokens;
    });
}

t2r_kind t2r_read_vectors(t2r_decoder *decoder, const float *vectors, size_t batch, size_t length, size_t size, const float **logits) {
    return guarded([&] {
        const DecoderCall use(decoder);
        require_rows(vectors, batch, length, "vectors");
        hand_out(use->decoder.read_vectors(vectors, static_cast<std::int64_t>(batch), static_cast<std::int64_t>(length),
                                           static_cast<std::int64_t>(size)), logits);
    });
}

t2r_kind t2r_reorder(t2r_decoder *decoder, const int64_t *rows, size_t count) {
    return guarded([&] {
        const DecoderCall use(decoder);
        require_list(rows, count, "rows");
        use->decoder.reorder({rows, rows + count});
    });
}

t2r_kind t2r_take(t2r_decoder *decoder, t2r_decoder *const *from, const int64_t *rows, size_t count) {
    return guarded([&] {
        const DecoderCall use(decoder);
        require_list(from, count, "decoders");
        require_list(rows, count, "rows");
        std::map<t2r_decoder *, std::unique_ptr<Decoders::Use>> others;  // one Use per decoder
        std::vector<Decoder::Row> chosen;
        for (size_t i = 0; i < count; i++) {
            auto &other = others[from[i]];
            if (from[i] != decoder && !other) other = std::make_unique<Decoders::Use>(decoders(), from[i]);
            chosen.emplace_back(other ? &(*other)->decoder : &use->decoder, rows[i]);
        }
        use->decoder.take(chosen);
    });
}

t2r_kind t2r_sampling_defaults(t2r_decoder *decoder, t2r_sampling *sampling, size_t size) {
    return guarded([&] {
        if (!decoder) return hand_out_options(sampling_of(Sampling()), sampling, size);
        const DecoderCall use(decoder);
        hand_out_options(sampling_of(use->decoder.signature().sampling), sampling, size);
    });
}

t2r_kind t2r_generate(t2r_decoder *decoder, const int64_t *prompt, size_t length, int64_t max_tokens,
                      const t2r_sampling *sampling, t2r_callback callback, void *user, const int64_t **tokens,
                      size_t *count) {
    return guarded([&] {
        const DecoderCall use(decoder);
        require_list(prompt, length, "a prompt");
        require(tokens, "where to put the tokens");
        require(count, "where to put the number of tokens");
        *tokens = nullptr;
        *count = 0;
        Request request;
        request.prompt.assign(prompt, prompt + length);
        request.max_tokens = max_tokens;
        const t2r_sampling given = over(sampling_of(use->decoder.signature().sampling), sampling);
        request.sampling = sampling_of(given);
        if (given.stop_tokens) request.stop_tokens.emplace(given.stop_tokens, given.stop_tokens + given.stop_count);
        if (callback) request.callback = [=](std::int64_t token) { return callback(token, user) != 0; };
        const HandOut hand_out{use->written, tokens, count};
        generate(use->decoder, request, use->written);
    });
}

t2r_kind t2r_draft(t2r_decoder *decoder, int32_t lookup) {
    return guarded([&] { DecoderCall(decoder)->decoder.draft(lookup != 0); });
}

t2r_kind t2r_choose(t2r_decoder *decoder, const float *logits, size_t row, const t2r_sampling *sampling, int64_t draw, int64_t *token) {
    return guarded([&] {
        const DecoderCall use(decoder);
        require(logits, "logits");
        require(token, "where to put the token");
        require_index(row, static_cast<size_t>(use->decoder.batch()), "sequence");
        const Sampling asked = sampling_of(over(sampling_of(use->decoder.signature().sampling), sampling));
        *token = choose(use->decoder, logits, row, asked, draw);
    });
}
