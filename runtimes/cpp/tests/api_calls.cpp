// api_calls FOLDER SEED CALLS: random calls of libt2r on the golden files of FOLDER, with arguments in and far out of range,
// closed and invalid handles, and structures of wrong sizes. Each call must succeed or be an error with a line; a sanitizer
// checks the rest. Prints how many succeeded and failed. With $T2R_PLUGIN, the path of a plugin, half of the graphs run on it, often
// those with caches.
#include <t2r.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace {

using Ids = std::vector<std::int64_t>;

std::mt19937_64 chance;
std::string folder;
const char *plugin = nullptr;
long good = 0, bad = 0;
const char *calling = "";

std::uint64_t below(std::uint64_t count) { return chance() % count; }
bool seldom() { return below(8) == 0; }

template <class T> T one_of(std::initializer_list<T> values) { return values.begin()[below(values.size())]; }

std::int64_t number() {
    return seldom() ? one_of<std::int64_t>({-1, 1 << 24, std::int64_t{1} << 31, std::int64_t{1} << 62, INT64_MIN, INT64_MAX, 1000})
                    : static_cast<std::int64_t>(below(9));
}

double real() { return seldom() ? one_of<double>({-1, 1e308, -1e308, 0.0 / 1, 1e-300, std::strtod("nan", nullptr), std::strtod("inf", nullptr)}) : 0.1 * static_cast<double>(below(20)); }

Ids tokens(std::size_t count) {
    Ids made;
    while (made.size() < count) made.push_back(below(40) ? static_cast<std::int64_t>(below(17)) : number());
    return made;
}

std::string text() {
    std::string made;
    for (std::uint64_t left = below(30); left > 0; left--) made += below(6) ? static_cast<char>('a' + below(26)) : static_cast<char>(below(256));
    return made;
}

std::string path() {
    static const char *names[] = {"tiny", "tiny-hybrid", "prefill", "loop", "top3", "bytes", "options", "translator", "translator-options",
                                  "packed", "window", "gated", "ends", "nowhere", "bad/role"};
    return folder + "/" + names[plugin && below(2) ? 1 + below(2) : below(std::size(names))] + (seldom() ? ".state" : ".onnx");
}

// Checks a call's result: a kind with a name, and a line if it failed.
bool told(t2r_kind kind) {
    const char *line = t2r_error();
    if (kind < T2R_OK || kind > T2R_CANCELLED || (kind != T2R_OK && (std::strncmp(line, "expected ", 9) != 0 || std::strchr(line, '\n')))) {
        std::fprintf(stderr, "%s: kind %d, %s\n", calling, static_cast<int>(kind), line);
        std::abort();
    }
    (kind == T2R_OK ? good : bad)++;
    return kind == T2R_OK;
}

// Handles of one type: a few open ones, and some closed ones.
template <class T> struct Open {
    std::vector<T *> handles = {nullptr};

    T *any() { return seldom() ? reinterpret_cast<T *>(chance()) : handles[below(handles.size())]; }
    void add(T *made) {
        if (handles.size() < 7) handles.push_back(made);
        else handles[1 + below(6)] = made;
    }
};

Open<t2r_decoder> decoders;
Open<t2r_tokenizer> tokenizers;
Open<t2r_stream> streams;

// Reads every byte of what a call returns.
volatile unsigned char seen;
void read(const void *memory, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; i++) seen = static_cast<const unsigned char *>(memory)[i];
}
void read(const std::int64_t *ids, std::size_t count) { read(static_cast<const void *>(ids), 8 * count); }

t2r_info info_of(t2r_decoder *decoder) {
    t2r_info info = {};
    t2r_get_info(decoder, &info, sizeof info);
    return info;
}

// A structure of the API, with room after it for one of a newer header.
template <class T> struct Roomy {
    T made = {};
    unsigned char behind[sizeof(T)] = {};

    Roomy() {
        if (seldom()) behind[below(sizeof(T))] = 1;
    }
    T *operator->() { return &made; }
};

std::size_t struct_size(std::size_t size) { return seldom() ? below(2 * size) : size; }

void open() {
    Roomy<t2r_options> options;
    t2r_decoder *made;
    told(t2r_defaults(&options.made, struct_size(sizeof(t2r_options))));
    if (seldom()) options->threads = static_cast<std::int32_t>(number());
    if (seldom()) options->max_state_bytes = number();
    if (seldom()) options->max_source = number();
    options->companions = static_cast<std::int32_t>(below(2));
    if (options->threads > 2) options->threads = 1;
    const char *const words[] = {one_of<const char *>({"CPU", "QNN", "", nullptr}), "session.disable_cpu_ep_fallback", "0"};
    if (below(4) == 0) options->config = words + 1, options->config_count = below(3);
    if (plugin) options->provider = &plugin, options->provider_count = 1;
    else if (below(4) == 0) options->provider = words, options->provider_count = seldom() ? below(4) : 1;
    if (told(t2r_open(path().c_str(), below(2) ? &options.made : nullptr, seldom() ? nullptr : &made))) decoders.add(made);
}

void fork() {
    t2r_decoder *made;
    if (told(t2r_fork(decoders.any(), &made))) decoders.add(made);
}

void copy() {
    t2r_decoder *made;
    if (told(t2r_copy(decoders.any(), seldom() ? nullptr : &made))) decoders.add(made);
}

std::string content(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

void open_memory() {
    static const char *names[] = {"tiny", "bytes", "translator", "prefill"};
    std::string bytes = content(folder + "/" + names[below(std::size(names))] + ".onnx");
    if (seldom()) bytes.resize(below(bytes.size()));
    const t2r_file files[] = {{"first", bytes.data(), bytes.size()}, {seldom() ? nullptr : "tiny.onnx", seldom() ? nullptr : bytes.data(), bytes.size()}};
    t2r_decoder *made;
    if (told(t2r_open_memory(files, seldom() ? below(3) : 1, nullptr, &made))) decoders.add(made);
}

void cancel() { told(t2r_cancel(decoders.any())); }

void metadata() {
    const char *value = nullptr;
    std::size_t size = 0;
    const char *key = one_of<const char *>({"t2r.states", "t2r.role", "t2r.chat_template", "", "t2r.tokenizer", nullptr});
    if (told(t2r_metadata(decoders.any(), key, &value, seldom() ? nullptr : &size)) && value) read(value, size);
}

void close() { told(t2r_close(decoders.any())); }

void get_info() {
    Roomy<t2r_info> info;
    told(t2r_get_info(decoders.any(), &info.made, struct_size(sizeof(t2r_info))));
}

void reset() { told(t2r_reset(decoders.any(), seldom() ? one_of<std::size_t>({SIZE_MAX, std::size_t{1} << 62, 200}) : below(4))); }

void adapt() {
    const char *names[] = {one_of<const char *>({"a", "", nullptr}), nullptr, nullptr, nullptr};
    told(t2r_draft(decoders.any(), static_cast<std::int32_t>(below(2))));
    told(t2r_adapt(decoders.any(), seldom() ? nullptr : names, below(5)));
}

void step() {
    t2r_decoder *decoder = decoders.any();
    const t2r_info info = info_of(decoder);
    const Ids ids = tokens(seldom() ? below(5) : static_cast<std::size_t>(info.batch));
    const float *logits = nullptr;
    if (told(t2r_step(decoder, ids.empty() ? nullptr : ids.data(), ids.size(), &logits)))
        read(logits, 4 * static_cast<std::size_t>(info.batch * info.vocab_size));
}

void prefill() {
    t2r_decoder *decoder = decoders.any();
    const t2r_info info = info_of(decoder);
    const std::size_t batch = seldom() ? below(4) : static_cast<std::size_t>(info.batch), length = below(9);
    const Ids ids = tokens(batch * length);
    const float *logits = nullptr;
    const std::int64_t *chosen = nullptr;
    if (seldom()) {
        const std::vector<float> vectors(batch * length * 3, 0.5F);
        if (told(t2r_read_vectors(decoder, vectors.data(), batch, length, 3, &logits)) && length == 0) std::abort();
    } else if (below(3)) told(t2r_prefill(decoder, ids.data(), batch, length, &logits));
    else if (told(t2r_top_k(decoder, ids.data(), batch, length, &logits, &chosen))) read(chosen, batch * static_cast<std::size_t>(info.top_k));
}

void reorder() {
    Ids rows;
    for (std::uint64_t left = below(4); left > 0; left--) rows.push_back(seldom() ? number() : static_cast<std::int64_t>(below(3)));
    told(t2r_reorder(decoders.any(), rows.data(), rows.size()));
}

void take() {
    std::vector<t2r_decoder *> from;
    Ids rows;
    t2r_decoder *const decoder = decoders.any(), *const other = decoders.any();
    for (std::uint64_t left = below(4); left > 0; left--) {
        from.push_back(seldom() ? decoders.any() : below(2) ? decoder : other);
        rows.push_back(seldom() ? number() : static_cast<std::int64_t>(below(2)));
    }
    told(t2r_take(decoder, from.data(), rows.data(), rows.size()));
}

void choose() {
    t2r_decoder *const decoder = decoders.any();
    std::vector<float> logits(static_cast<std::size_t>(info_of(decoder).vocab_size));
    for (float &logit : logits) logit = static_cast<float>(real());
    std::int64_t token = -1;
    const std::int64_t draw = seldom() ? number() : static_cast<std::int64_t>(below(9));
    told(t2r_choose(decoder, logits.empty() ? nullptr : logits.data(), seldom() ? below(9) : 0, nullptr, draw, &token));
}

int callback(std::int64_t token, void *user) {
    if (seldom()) {  // a call from the callback, which must be an error
        const float *logits;
        if (t2r_step(static_cast<t2r_decoder *>(user), &token, 1, &logits) == T2R_OK) std::abort();
        if (below(2)) told(t2r_cancel(static_cast<t2r_decoder *>(user)));
    }
    return below(10) != 0;
}

void generate() {
    t2r_decoder *decoder = decoders.any();
    Roomy<t2r_sampling> sampling;
    told(t2r_sampling_defaults(seldom() ? nullptr : decoder, &sampling.made, struct_size(sizeof(t2r_sampling))));
    const Ids prompt = tokens(below(6)), stops = tokens(below(3));
    if (below(2)) sampling->temperature = real();
    if (below(4) == 0) sampling->top_k = number();
    if (below(4) == 0) sampling->top_p = real();
    if (below(4) == 0) sampling->min_p = real();
    if (below(4) == 0) sampling->repetition_penalty = real();
    if (below(4) == 0) sampling->no_repeat_ngram = number();
    if (below(2)) sampling->seed = number();
    if (below(2)) sampling->stop_tokens = stops.data(), sampling->stop_count = stops.size();
    if (seldom()) sampling->size = below(2 * sizeof(t2r_sampling));
    const std::int64_t most = seldom() ? one_of<std::int64_t>({-1, 0, INT64_MIN}) : static_cast<std::int64_t>(below(30));
    const std::int64_t *written;
    std::size_t count;
    if (told(t2r_generate(decoder, prompt.data(), prompt.size(), most, below(4) ? &sampling.made : nullptr, below(2) ? callback : nullptr, decoder,
                          &written, seldom() ? nullptr : &count)))
        read(written, count);
}

void states() {
    t2r_decoder *decoder = decoders.any();
    const t2r_info info = info_of(decoder);
    std::vector<t2r_tensor> found(info.states);
    for (std::size_t i = 0; i < found.size(); i++)
        if (told(t2r_state(decoder, i, &found[i]))) read(found[i].data, found[i].bytes);
    std::vector<std::vector<char>> bytes;
    for (t2r_tensor &state : found) {  // copies, as later calls overwrite the data
        bytes.emplace_back(static_cast<const char *>(state.data), static_cast<const char *>(state.data) + state.bytes);
        state.data = seldom() && bytes.back().empty() ? nullptr : bytes.back().data();
        if (below(40) == 0) state.bytes = static_cast<std::size_t>(number());
        if (below(40) == 0) state.dtype = one_of<const char *>({"float32", "int64", "float64", ""});
        if (below(40) == 0) state.name = "S.7";
    }
    told(t2r_set_states(decoder, found.data(), seldom() ? below(3) : found.size(), number()));
}

void snapshot() {
    const std::string name = seldom() ? "/nowhere/x" : folder + (below(2) ? "/fuzzed.state" : "/tiny.state");
    std::int64_t token;
    if (below(3) == 0) {
        const void *data = nullptr;
        std::size_t bytes = 0;
        if (!told(t2r_save_memory(decoders.any(), number(), &data, &bytes))) return;
        std::string copy(static_cast<const char *>(data), bytes);
        if (seldom()) copy[below(bytes)] ^= static_cast<char>(1 + below(255));
        told(t2r_load_memory(decoders.any(), copy.data(), seldom() ? below(bytes) : bytes, &token));
    } else if (below(2) && name != folder + "/tiny.state") told(t2r_save(decoders.any(), name.c_str(), number()));
    else told(t2r_load(decoders.any(), name.c_str(), seldom() ? nullptr : &token));
}

void encode_sources() {
    const std::size_t count = below(4), longest = below(7);
    Ids lengths;
    while (lengths.size() < count) lengths.push_back(below(20) ? static_cast<std::int64_t>(below(longest + 1)) : number());
    const Ids ids = tokens(count * longest);
    told(t2r_encode_sources(decoders.any(), ids.data(), lengths.data(), count, longest));
}

void translate() {
    t2r_decoder *decoder = decoders.any();
    Roomy<t2r_beam> beam;
    told(t2r_beam_defaults(seldom() ? nullptr : decoder, &beam.made, struct_size(sizeof(t2r_beam))));
    for (std::int64_t *whole : {&beam->width, &beam->min_tokens, &beam->n_best, &beam->no_repeat_ngram})
        if (below(4) == 0) *whole = number();
    for (double *to : {&beam->length_penalty, &beam->repetition_penalty})
        if (below(4) == 0) *to = real();
    beam->max_tokens = seldom() ? number() : 1 + static_cast<std::int64_t>(below(12));
    if (below(4) == 0) beam->early_stopping = static_cast<std::int32_t>(below(4));
    if (beam->max_tokens > 12) beam->max_tokens = 11;
    if (beam->width > 64) beam->width = 17;
    const Ids source = tokens(below(8));
    std::size_t found = 0, count;
    told(t2r_translate(decoder, source.data(), source.size(), below(4) ? &beam.made : nullptr, &found));
    for (std::size_t i = 0; i < found + 1 && i < 5; i++) {
        const std::int64_t *ids;
        double score;
        if (told(t2r_translation(decoder, i, &ids, &count, &score))) read(ids, count);
    }
}

void open_tokenizer() {
    t2r_tokenizer *made;
    const std::string json = R"({"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}})";
    const std::string given = below(3) ? json : json.substr(0, below(json.size()));
    const t2r_kind kind = below(2)   ? t2r_open_tokenizer(decoders.any(), &made)
                          : below(2) ? t2r_open_source_tokenizer(decoders.any(), &made)
                                     : t2r_make_tokenizer(given.data(), given.size(), number(), &made);
    if (told(kind)) tokenizers.add(made);
}

void close_tokenizer() { told(t2r_close_tokenizer(tokenizers.any())); }

void encode() {
    const std::string given = text();
    const std::int64_t *ids;
    std::size_t count;
    if (told(t2r_encode(tokenizers.any(), given.data(), given.size(), static_cast<int>(below(2)), &ids, &count))) read(ids, count);
}

void decode() {
    const Ids ids = tokens(below(20));
    const char *found;
    std::size_t size;
    if (told(t2r_decode(tokenizers.any(), ids.empty() ? nullptr : ids.data(), ids.size(), &found, &size))) read(found, size + 1);
}

void open_stream() {
    const Ids ids = tokens(below(6));
    t2r_stream *made;
    if (told(t2r_open_stream(tokenizers.any(), ids.data(), ids.size(), &made))) streams.add(made);
}

void feed() {
    const char *found;
    std::size_t size;
    t2r_stream *stream = streams.any();
    const std::string stop = text();
    const char *stops[] = {"a", seldom() ? nullptr : stop.c_str()};
    if (seldom()) told(t2r_stop_at(stream, seldom() ? nullptr : stops, below(3)));
    int stopped;
    if (seldom()) told(t2r_stopped(stream, seldom() ? nullptr : &stopped));
    if (told(below(5) ? t2r_feed(stream, number(), &found, &size) : t2r_end_stream(stream, &found, &size))) read(found, size + 1);
}

void close_stream() { told(t2r_close_stream(streams.any())); }

struct Call {
    const char *name;
    void (*call)();
    unsigned weight;
};

constexpr Call calls[] = {
    {"open", open, 3}, {"fork", fork, 2}, {"copy", copy, 2}, {"open_memory", open_memory, 2},
    {"cancel", cancel, 1}, {"metadata", metadata, 1}, {"close", close, 1}, {"get_info", get_info, 1}, {"reset", reset, 3}, {"adapt", adapt, 1}, {"step", step, 8},
    {"prefill", prefill, 6}, {"reorder", reorder, 4}, {"take", take, 4}, {"choose", choose, 3}, {"generate", generate, 8}, {"states", states, 3}, {"snapshot", snapshot, 3},
    {"encode_sources", encode_sources, 4}, {"translate", translate, 4}, {"open_tokenizer", open_tokenizer, 2},
    {"close_tokenizer", close_tokenizer, 1}, {"encode", encode, 4}, {"decode", decode, 4}, {"open_stream", open_stream, 2},
    {"feed", feed, 6}, {"close_stream", close_stream, 1},
};

}  // namespace

int main(int count, char **arguments) {
    if (count != 4) return std::fputs("usage: api_calls FOLDER SEED CALLS\n", stderr), 1;
    folder = arguments[1], plugin = std::getenv("T2R_PLUGIN");
    chance.seed(std::strtoull(arguments[2], nullptr, 10));
    std::vector<const Call *> table;
    for (const Call &call : calls) table.insert(table.end(), call.weight, &call);
    for (long left = std::atol(arguments[3]); left > 0; left--) {
        const Call *const next = table[below(table.size())];
        calling = next->name;
        next->call();
    }
    for (t2r_decoder *handle : decoders.handles) t2r_close(handle);
    for (t2r_tokenizer *handle : tokenizers.handles) t2r_close_tokenizer(handle);
    for (t2r_stream *handle : streams.handles) t2r_close_stream(handle);
    std::printf("%ld succeeded, %ld failed\n", good, bad);
}
