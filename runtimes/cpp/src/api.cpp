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

Options options_of(const t2r_options *given) {
    Options options;
    if (!given) return options;
    require_argument(given->size == sizeof(t2r_options), T2R_PROVIDER, "options made by t2r_defaults");
    options.threads = given->threads;
    options.companions = given->companions != 0;
    options.max_state_bytes = given->max_state_bytes;
    return options;
}

Sampling sampling_of(const t2r_sampling &given) {
    require_argument(given.size == sizeof(t2r_sampling), T2R_SAMPLING, "options made by t2r_sampling_defaults");
    return {given.temperature,        given.top_k,           given.top_p, given.min_p,
            given.repetition_penalty, given.no_repeat_ngram, given.seed < 0 ? -1 : given.seed};
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

t2r_options t2r_defaults(void) {
    return {sizeof(t2r_options), 0, 1, default_state_bytes};
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
        require_argument(info && size == sizeof(t2r_info), T2R_VERSION, "a t2r_info, and its size");
        const Decoders::Use use(decoders(), decoder);
        const Decoder &found = use->decoder;
        const Signature &signature = found.signature();
        info->vocab_size = signature.vocab_size;
        info->batch = found.batch();
        info->fixed_batch = signature.batch;
        info->position = found.position();
        info->max_positions = signature.reach();
        info->bos_token = signature.bos_token;
        info->top_k = signature.top_k;
        info->states = signature.states.size();
        info->eos_count = signature.eos_tokens.size();
        info->eos_tokens = signature.eos_tokens.data();
        info->checkpoint = signature.checkpoint.c_str();
        info->prefills = found.opened()->has("prefill");
        info->generates = found.opened()->has("generate");
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

t2r_sampling t2r_sampling_defaults(void) {
    return {sizeof(t2r_sampling), 1, 0, 1, 0, 1, 0, -1, nullptr, 0};
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
        if (sampling) {
            request.sampling = sampling_of(*sampling);
            if (sampling->stop_tokens) request.stop_tokens.emplace(sampling->stop_tokens, sampling->stop_tokens + sampling->stop_count);
        }
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
