#include "api.hpp"
#include "generate.hpp"
#include "snapshot.hpp"

#include <cstring>
#include <new>

namespace {

using namespace t2r;

constexpr const char *kind_names[] = {"ok",    "file",     "graph", "version",  "metadata", "interface", "weights",
                                      "tokenizer", "token", "position", "batch",    "snapshot", "sampling",  "provider"};
constexpr std::size_t max_line = 1024;
thread_local char last_error[max_line] = "";  // no std::string: keeping a line must not fail

t2r_kind keep(t2r_kind kind, const char *line) noexcept {
    std::strncpy(last_error, line, max_line - 1);
    return kind;
}

t2r_options default_options() { return {sizeof(t2r_options), 0, 1, default_state_bytes}; }

Options options_of(const t2r_options *given) {
    const t2r_options found = over(default_options(), given, T2R_PROVIDER);
    Options options;
    options.threads = found.threads;
    options.companions = found.companions != 0;
    options.max_state_bytes = found.max_state_bytes;
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
        return keep(T2R_PROVIDER, "expected memory; received none; close other programs, or use a smaller model or batch");
    } catch (const std::exception &error) {
        return keep(T2R_GRAPH, error.what());
    } catch (...) {
        return keep(T2R_GRAPH, "expected to go on; received an unknown exception; report it");
    }
}

}  // namespace t2r

const char *t2r_kind_name(t2r_kind kind) {
    return kind >= T2R_OK && kind <= T2R_PROVIDER ? kind_names[kind] : "unknown";
}

const char *t2r_error(void) { return last_error; }

t2r_kind t2r_defaults(t2r_options *options, size_t size) {
    return guarded([&] { hand_out_options(default_options(), options, size, T2R_PROVIDER); });
}

t2r_kind t2r_open(const char *path, const t2r_options *options, t2r_decoder **decoder) {
    return guarded([&] {
        require_argument(path && decoder, T2R_FILE, "a path, and where to put the decoder");
        *decoder = nullptr;
        auto graph = std::make_shared<Graph>(path, options_of(options));
        *decoder = decoders().add(std::make_unique<OpenDecoder>(std::move(graph)));
    });
}

t2r_kind t2r_fork(t2r_decoder *decoder, t2r_decoder **other) {
    return guarded([&] {
        require_argument(other, T2R_GRAPH, "where to put the decoder");
        *other = nullptr;
        const Decoders::Use use(decoders(), decoder);
        *other = decoders().add(std::make_unique<OpenDecoder>(use->decoder.opened()));
    });
}

t2r_kind t2r_close(t2r_decoder *decoder) {
    return guarded([&] { decoders().close(decoder); });
}

t2r_kind t2r_get_info(t2r_decoder *decoder, t2r_info *info, size_t size) {
    return guarded([&] {
        const Decoders::Use use(decoders(), decoder);
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
        made.generates = found.opened()->has("generate");
        hand_out(made, info, size, T2R_VERSION);
    });
}

t2r_kind t2r_reset(t2r_decoder *decoder, size_t batch) {
    return guarded([&] {
        const Decoders::Use use(decoders(), decoder);
        use->decoder.reset(batch ? static_cast<std::int64_t>(batch) : use->decoder.batch());
    });
}

t2r_kind t2r_step(t2r_decoder *decoder, const int64_t *tokens, size_t count, const float **logits) {
    return guarded([&] {
        const Decoders::Use use(decoders(), decoder);
        require_argument(tokens, T2R_TOKEN, "tokens");
        hand_out(use->decoder.read(tokens, static_cast<std::int64_t>(count), 1), logits);
    });
}

t2r_kind t2r_prefill(t2r_decoder *decoder, const int64_t *tokens, size_t batch, size_t length, const float **logits) {
    return guarded([&] {
        const Decoders::Use use(decoders(), decoder);
        require_argument(tokens || length == 0, T2R_TOKEN, "tokens");
        require_argument(length < size_t{1} << 40, T2R_TOKEN, "a length of at most 2^40");
        hand_out(use->decoder.read(tokens, static_cast<std::int64_t>(batch), static_cast<std::int64_t>(length)), logits);
    });
}

t2r_kind t2r_top_k(t2r_decoder *decoder, const int64_t *tokens, size_t batch, size_t length, const float **logits,
                   const int64_t **chosen) {
    return guarded([&] {
        const Decoders::Use use(decoders(), decoder);
        require_argument(tokens || length == 0, T2R_TOKEN, "tokens");
        require_argument(length < size_t{1} << 40, T2R_TOKEN, "a length of at most 2^40");
        const Logits found =
            use->decoder.read(tokens, static_cast<std::int64_t>(batch), static_cast<std::int64_t>(length), Wanted::top);
        hand_out(found, logits);
        if (chosen) *chosen = found.tokens;
    });
}

t2r_kind t2r_reorder(t2r_decoder *decoder, const int64_t *rows, size_t count) {
    return guarded([&] {
        const Decoders::Use use(decoders(), decoder);
        require_argument(rows || count == 0, T2R_BATCH, "rows");
        use->decoder.reorder({rows, rows + count});
    });
}

t2r_kind t2r_state(t2r_decoder *decoder, size_t index, t2r_tensor *state) {
    return guarded([&] {
        const Decoders::Use use(decoders(), decoder);
        require_argument(state && index < use->decoder.all_states().count(), T2R_SNAPSHOT, "a state's number, and where to put it");
        const StateView view = use->decoder.all_states().state(index);
        *state = {view.spec->name.c_str(), name_of(view.spec->dtype), view.shape->size(), view.shape->data(), view.data, view.bytes};
    });
}

t2r_kind t2r_set_states(t2r_decoder *decoder, const t2r_tensor *states, size_t count, int64_t position) {
    return guarded([&] {
        const Decoders::Use use(decoders(), decoder);
        require_argument(states && count == use->decoder.all_states().count(), T2R_SNAPSHOT, "all states of the graph");
        std::vector<GivenState> given;
        for (size_t i = 0; i < count; i++) {
            const t2r_tensor &state = states[i];
            const auto dtype = state.dtype ? dtype_named(state.dtype) : std::nullopt;
            require_argument(state.name && dtype && (state.shape || !state.rank) && (state.data || !state.bytes),
                             T2R_SNAPSHOT, "states with a name, a dtype, a shape and data");
            given.push_back({state.name, *dtype, Shape(state.shape, state.shape + state.rank), state.data});
            std::size_t bytes = size_of(*dtype);
            for (const std::int64_t dim : given.back().shape) {
                require_argument(dim >= 0 && (dim == 0 || bytes <= (std::size_t{1} << 62) / static_cast<std::size_t>(dim)), T2R_SNAPSHOT, "a shape");
                bytes *= static_cast<std::size_t>(dim);
            }
            require_argument(bytes == state.bytes, T2R_SNAPSHOT, "as many bytes as a state's shape says");
        }
        use->decoder.set_states(given, position);
    });
}

t2r_kind t2r_sampling_defaults(t2r_decoder *decoder, t2r_sampling *sampling, size_t size) {
    return guarded([&] {
        if (!decoder) return hand_out_options(sampling_of(Sampling()), sampling, size, T2R_SAMPLING);
        const Decoders::Use use(decoders(), decoder);
        hand_out_options(sampling_of(use->decoder.signature().sampling), sampling, size, T2R_SAMPLING);
    });
}

t2r_kind t2r_generate(t2r_decoder *decoder, const int64_t *prompt, size_t length, int64_t max_tokens,
                      const t2r_sampling *sampling, t2r_callback callback, void *user, const int64_t **tokens,
                      size_t *count) {
    return guarded([&] {
        const Decoders::Use use(decoders(), decoder);
        require_argument(prompt || length == 0, T2R_TOKEN, "a prompt");
        require_argument(tokens && count, T2R_TOKEN, "where to put tokens and their number");
        Request request;
        request.prompt.assign(prompt, prompt + length);
        request.max_tokens = max_tokens;
        const t2r_sampling given = over(sampling_of(use->decoder.signature().sampling), sampling, T2R_SAMPLING);
        request.sampling = sampling_of(given);
        if (given.stop_tokens) request.stop_tokens.emplace(given.stop_tokens, given.stop_tokens + given.stop_count);
        if (callback) request.callback = [=](std::int64_t token) { return callback(token, user) != 0; };
        use->written = generate(use->decoder, request);
        *tokens = use->written.data();
        *count = use->written.size();
    });
}

t2r_kind t2r_save(t2r_decoder *decoder, const char *path, int64_t token) {
    return guarded([&] {
        const Decoders::Use use(decoders(), decoder);
        require_argument(path, T2R_FILE, "a path");
        save_snapshot(use->decoder, path, token);
    });
}

t2r_kind t2r_load(t2r_decoder *decoder, const char *path, int64_t *token) {
    return guarded([&] {
        const Decoders::Use use(decoders(), decoder);
        require_argument(path, T2R_FILE, "a path");
        const std::int64_t saved = load_snapshot(use->decoder, path);
        if (token) *token = saved;
    });
}
