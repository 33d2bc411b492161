// torture KIND once|on FOLDER OUT CASE: makes the calls of a case with the golden files of FOLDER, each with a fault in its first
// operation of the kind (memory, files or onnxruntime), then in its second, … until it makes no more. With `on`, later operations
// of the call fail too. A call with a fault must be an error of the right kind, and what its case says must not change; then the
// same call must succeed. Prints the number of faults and the results, which must not depend on the faults: KIND `none` plans
// none. OUT: an empty folder for files. Some cases are wrong on purpose.
#include "faults.hpp"

#include <t2r_texts.hpp>

#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace {

using Ids = std::vector<std::int64_t>;
using State = std::function<std::string()>;

std::string kind_name, golden, out;
faults::Kind kind;
bool plans = true, on = false;
long count = 0;

[[noreturn]] void wrong(const char *call, long number, const std::string &why) {
    std::fprintf(stderr, "%s with a fault in operation %ld: %s; t2r_error: %s\n", call, number, why.c_str(), t2r_error());
    std::_Exit(1);
}

bool is_right(t2r_kind found) {
    if (kind == faults::Kind::memory) return found == T2R_MEMORY;
    if (kind == faults::Kind::files) return found == T2R_FILE || found == T2R_WEIGHTS;
    return found == T2R_RUNTIME || found == T2R_GRAPH || found == T2R_PROVIDER;
}

void require_line(const char *call, long number) {
    const char *const line = t2r_error();
    if (std::strncmp(line, "expected ", 9) != 0 || std::strchr(line, '\n')) wrong(call, number, "no line");
}

std::string nothing() { return ""; }

// `before` is called before each attempt, `state` before it and after one that failed.
template <class Before, class Call> void each_fault_after(Before before, const char *name, Call call, const State &state = nothing) {
    for (long number = 1;; number++) {
        before();
        const std::string then = state();
        if (plans) faults::plan(kind, number, on);
        const t2r_kind found = call();
        if (!faults::done()) {
            if (found != T2R_OK) wrong(name, number, std::string("without a fault, an error of the kind ") + t2r_kind_name(found));
            return;
        }
        count++;
        if (found == T2R_OK) wrong(name, number, "it succeeded");
        if (!is_right(found)) wrong(name, number, std::string("an error of the kind ") + t2r_kind_name(found));
        require_line(name, number);
        if (state() != then) wrong(name, number, "it changed something");
    }
}

template <class Call> void each_fault(const char *name, Call call, const State &state = nothing) {
    each_fault_after([] {}, name, call, state);
}

void must(t2r_kind found) {
    if (found != T2R_OK) wrong("a call without a fault", 0, "an error");
}

void show(const char *name, const std::int64_t *ids, std::size_t length) {
    std::printf("%s", name);
    for (std::size_t i = 0; i < length; i++) std::printf(" %lld", static_cast<long long>(ids[i]));
    std::printf("\n");
}

void show(const char *name, const float *values, std::size_t length) {
    std::printf("%s", name);
    for (std::size_t i = 0; i < length; i++) std::printf(" %.9g", static_cast<double>(values[i]));
    std::printf("\n");
}

// ---- Decoders ----

t2r_options options() {
    t2r_options made;
    must(t2r_defaults(&made, sizeof made));
    made.threads = 1;
    return made;
}

// Opened twice: the first opening also creates what all share.
t2r_decoder *opened(const char *name, const t2r_options &chosen = options()) {
    const std::string path = golden + "/" + name + ".onnx";
    t2r_decoder *first = nullptr, *decoder = nullptr;
    each_fault("open", [&] { return t2r_open(path.c_str(), &chosen, &first); }, [&] { return std::string(first ? "open" : ""); });
    each_fault("open again", [&] { return t2r_open(path.c_str(), &chosen, &decoder); }, [&] { return std::string(decoder ? "open" : ""); });
    must(t2r_close(first));
    return decoder;
}

t2r_info info_of(t2r_decoder *decoder) {
    t2r_info info;
    must(t2r_get_info(decoder, &info, sizeof info));
    return info;
}

// The states and the position.
std::string snapshot_of(t2r_decoder *decoder) {
    const void *data;
    std::size_t bytes;
    must(t2r_save_memory(decoder, -1, &data, &bytes));
    return std::string(static_cast<const char *>(data), bytes) + std::to_string(info_of(decoder).position);
}

State states_of(t2r_decoder *decoder) {
    return [decoder] { return snapshot_of(decoder); };
}

// Names, modes and contents of all files of OUT.
std::string files() {
    std::vector<std::string> found;
    for (const auto &entry : std::filesystem::directory_iterator(out)) {
        std::ifstream file(entry.path(), std::ios::binary);
        found.push_back(entry.path().filename().string() + " " + std::to_string(static_cast<int>(entry.status().permissions())) + " " +
                        std::string(std::istreambuf_iterator<char>(file), {}));
    }
    std::sort(found.begin(), found.end());
    std::string all;
    for (const std::string &each : found) all += each + "\n";
    return all;
}

void generate(t2r_decoder *decoder) {
    const Ids prompt = {12, 3, 5, 9};
    t2r_sampling sampling;
    must(t2r_sampling_defaults(decoder, &sampling, sizeof sampling));
    sampling.temperature = 0.7;
    sampling.top_p = 0.9;
    sampling.seed = 3;
    sampling.repetition_penalty = 1.1;
    sampling.no_repeat_ngram = 3;
    must(t2r_reset(decoder, 1));
    std::map<std::int64_t, std::string> at = {{0, snapshot_of(decoder)}};  // by position, of a text without faults
    const std::int64_t *tokens;
    std::size_t length;
    must(t2r_generate(decoder, prompt.data(), prompt.size(), 3, &sampling, nullptr, nullptr, &tokens, &length));
    Ids text = prompt;
    text.insert(text.end(), tokens, tokens + length);
    must(t2r_reset(decoder, 1));
    for (const std::int64_t token : text) {
        must(t2r_step(decoder, &token, 1, nullptr));
        at[info_of(decoder).position] = snapshot_of(decoder);
    }
    const auto reset = [&] { must(t2r_reset(decoder, 1)); };
    const auto call = [&] {
        const t2r_kind found = t2r_generate(decoder, prompt.data(), prompt.size(), 3, &sampling, nullptr, nullptr, &tokens, &length);
        if (!std::equal(tokens, tokens + length, text.begin() + 4)) wrong("generate", 0, "other tokens");
        return found;
    };
    // after a fault, the decoder has read as many tokens as its position says
    const auto is_whole = [&] { return snapshot_of(decoder) == at.at(info_of(decoder).position) ? std::string() : "other states"; };
    each_fault_after(reset, "generate", call, is_whole);
    show("generate", tokens, length);
    static t2r_kind told;
    const auto cancel = [](std::int64_t, void *user) {
        told = t2r_cancel(static_cast<t2r_decoder *>(user));
        return 1;
    };
    const auto cancelled = [&] {
        told = T2R_OK;
        const t2r_kind found = t2r_generate(decoder, prompt.data(), prompt.size(), 3, &sampling, cancel, decoder, &tokens, &length);
        return found == T2R_CANCELLED ? told : found == T2R_OK ? T2R_STATE : found;
    };
    each_fault_after(reset, "cancel", cancelled, is_whole);
    const auto after_one = [&] {
        reset();
        must(cancelled());
    };
    each_fault_after(after_one, "reset after it", [&] { return t2r_reset(decoder, 1); });
}

void save(t2r_decoder *decoder) {
    const std::string path = out + "/kept.state";
    std::int64_t token = 0;
    each_fault("save", [&] { return t2r_save(decoder, path.c_str(), 4); }, files);
    chmod(path.c_str(), 0640);
    const std::string first = snapshot_of(decoder);
    must(t2r_step(decoder, &token, 1, nullptr));
    each_fault("save over it", [&] { return t2r_save(decoder, path.c_str(), 7); }, files);
    std::printf("files %zu\n", std::hash<std::string>()(files()));
    const std::string second = snapshot_of(decoder);
    must(t2r_reset(decoder, 2));
    each_fault("load", [&] { return t2r_load(decoder, path.c_str(), &token); }, states_of(decoder));
    if (token != 7 || snapshot_of(decoder) != second || first == second) wrong("load", 0, "other states");
    const void *data;
    std::size_t bytes;
    each_fault("save to memory", [&] { return t2r_save_memory(decoder, 3, &data, &bytes); });
    const std::string copy(static_cast<const char *>(data), bytes);
    must(t2r_reset(decoder, 2));
    each_fault("load from memory", [&] { return t2r_load_memory(decoder, copy.data(), copy.size(), &token); }, states_of(decoder));
    if (token != 3 || snapshot_of(decoder) != second) wrong("load from memory", 0, "other states");
    must(t2r_reset(decoder, 1));
}

void decoder() {
    t2r_decoder *const decoder = opened("tiny");
    const Ids pair = {7, 2};
    const float *logits = nullptr;
    generate(decoder);
    save(decoder);
    each_fault("reset", [&] { return t2r_reset(decoder, 2); }, states_of(decoder));
    const auto vocabulary = 2 * static_cast<std::size_t>(info_of(decoder).vocab_size);
    for (int i = 0; i < 3; i++) {  // the first two make a binding
        each_fault("step", [&] { return t2r_step(decoder, pair.data(), 2, &logits); }, states_of(decoder));
        show("step", logits, vocabulary);
    }
    const char *value = nullptr;
    each_fault("metadata", [&] { return t2r_metadata(decoder, "t2r.states.and.a.long.name", &value, nullptr); });
    must(t2r_close(decoder));
}

// Caches that grow, rows that move, and states of the caller.
void rows() {
    t2r_decoder *const decoder = opened("tiny-hybrid");
    t2r_decoder *copy = nullptr, *fork = nullptr;
    const Ids all = {3, 1, 4, 1, 5, 9, 2, 6}, swapped = {1, 0}, one = {1}, pair = {2, 7};
    const float *logits = nullptr;
    must(t2r_reset(decoder, 2));
    each_fault_after([&] { must(t2r_reset(decoder, 2)); }, "prefill", [&] { return t2r_prefill(decoder, all.data(), 2, 4, &logits); });
    each_fault("reorder", [&] { return t2r_reorder(decoder, swapped.data(), 2); }, states_of(decoder));
    each_fault("copy", [&] { return t2r_copy(decoder, &copy); }, [&] { return std::string(copy ? "open" : ""); });
    each_fault("fork", [&] { return t2r_fork(decoder, &fork); }, [&] { return std::string(fork ? "open" : ""); });
    for (int i = 0; i < 3; i++) each_fault("step", [&] { return t2r_step(decoder, pair.data(), 2, &logits); }, states_of(decoder));
    show("step", logits, 2 * static_cast<std::size_t>(info_of(decoder).vocab_size));
    std::vector<t2r_tensor> states(info_of(copy).states);
    for (std::size_t i = 0; i < states.size(); i++) must(t2r_state(copy, i, &states[i]));
    each_fault("set states", [&] { return t2r_set_states(fork, states.data(), states.size(), 4); }, states_of(fork));
    if (snapshot_of(fork) != snapshot_of(copy)) wrong("set states", 0, "other states");
    t2r_decoder *const from[] = {copy, fork, copy};
    const Ids of_each = {1, 0, 0};
    each_fault("take", [&] { return t2r_take(fork, from, of_each.data(), 3); }, states_of(fork));
    each_fault("drop", [&] { return t2r_reorder(fork, one.data(), 1); }, states_of(fork));
    each_fault("step of one", [&] { return t2r_step(fork, pair.data(), 1, &logits); }, states_of(fork));
    std::int64_t token = -1;
    t2r_sampling sampling;
    must(t2r_sampling_defaults(fork, &sampling, sizeof sampling));
    sampling.seed = 5;
    each_fault("choose", [&] { return t2r_choose(fork, logits, 0, &sampling, 2, &token); }, states_of(fork));
    show("choose", &token, 1);
    for (t2r_decoder *each : {decoder, copy, fork}) must(t2r_close(each));
}

// A graph beside the step graph, weights beside both, and all of them in memory.
void companion() {
    t2r_decoder *decoder = opened("history"), *other = nullptr;
    const Ids many = {3, 1, 4, 1, 5, 9, 2};
    const float *logits = nullptr;
    for (int i = 0; i < 2; i++)  // the first opens the prefill graph
        each_fault("prefill", [&] { return t2r_prefill(decoder, many.data(), 1, 7, &logits); }, states_of(decoder));
    show("prefill", logits, static_cast<std::size_t>(info_of(decoder).vocab_size));
    std::vector<std::string> names = {golden + "/history.onnx"}, contents;
    for (const auto &entry : std::filesystem::directory_iterator(golden))
        if (entry.path().filename().string().rfind("history.onnx.", 0) == 0) names.push_back(entry.path().string());
    std::vector<t2r_file> given;
    for (std::string &name : names) {
        std::ifstream file(name, std::ios::binary);
        contents.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
        name = std::filesystem::path(name).filename().string();
    }
    for (std::size_t i = 0; i < names.size(); i++) given.push_back({names[i].c_str(), contents[i].data(), contents[i].size()});
    const t2r_options chosen = options();
    each_fault("open memory", [&] { return t2r_open_memory(given.data(), given.size(), &chosen, &other); });
    must(t2r_prefill(other, many.data(), 1, 7, nullptr));
    must(t2r_prefill(other, many.data(), 1, 7, nullptr));
    if (snapshot_of(other) != snapshot_of(decoder)) wrong("open memory", 0, "other states");
    must(t2r_close(other));
    must(t2r_close(decoder));
}

void adapters() {
    t2r_decoder *const decoder = opened("adapters");
    const char *const names[] = {"poems-2", nullptr};
    const Ids pair = {7, 2};
    const float *logits = nullptr;
    must(t2r_reset(decoder, 2));
    for (int i = 0; i < 2; i++) {
        each_fault("adapt", [&] { return t2r_adapt(decoder, names + i, 2 - i); }, states_of(decoder));
        each_fault("step", [&] { return t2r_step(decoder, pair.data(), 2, &logits); }, states_of(decoder));
        show("step", logits, 2 * static_cast<std::size_t>(info_of(decoder).vocab_size));
    }
    must(t2r_close(decoder));
}

void vectors() {
    t2r_decoder *const decoder = opened("ear");
    const auto size = static_cast<std::size_t>(info_of(decoder).input_size);
    std::vector<float> given(3 * size);
    for (std::size_t i = 0; i < given.size(); i++) given[i] = 0.25f * static_cast<float>(i % 7) - 0.5f;
    const float *logits = nullptr;
    for (const std::size_t length : {3, 3, 1, 1})  // the first opens the prefill graph
        each_fault("read vectors", [&] { return t2r_read_vectors(decoder, given.data(), 1, length, size, &logits); }, states_of(decoder));
    show("vectors", logits, static_cast<std::size_t>(info_of(decoder).vocab_size));
    must(t2r_close(decoder));
}

// An execution provider in a library, whose own operations never fail here; caches grow in place.
void plugin() {
    const std::string path = golden + "/plugin.so";
    const char *const provider[] = {path.c_str(), "threads", "1"};
    t2r_options chosen = options();
    chosen.provider = provider;
    chosen.provider_count = 3;
    t2r_decoder *const decoder = opened("tiny-hybrid", chosen);
    const Ids one = {7}, twice = {0, 0};
    const float *logits = nullptr;
    for (int i = 0; i < 3; i++) each_fault("step", [&] { return t2r_step(decoder, one.data(), 1, &logits); }, states_of(decoder));
    show("step", logits, static_cast<std::size_t>(info_of(decoder).vocab_size));
    for (int i = 0; i < 3; i++) {  // no state is read between them
        must(t2r_step(decoder, one.data(), 1, nullptr));
        each_fault("step in place", [&] { return t2r_step(decoder, one.data(), 1, &logits); });
    }
    show("step in place", logits, static_cast<std::size_t>(info_of(decoder).vocab_size));
    each_fault("reorder", [&] { return t2r_reorder(decoder, twice.data(), 2); });
    must(t2r_close(decoder));
}

void translator() {
    t2r_decoder *const decoder = opened("translator-copies");
    const Ids source = {35, 0, 18, 35, 35, 36, 0, 19, 26, 40, 36}, lengths = {5, 3}, sources = {35, 2, 8, 9, 11, 4, 6, 8, 0, 0};
    t2r_beam beam;
    must(t2r_beam_defaults(decoder, &beam, sizeof beam));
    beam.width = 2;
    beam.max_tokens = 4;
    beam.n_best = 2;
    std::size_t found = 0;
    for (const std::int64_t copies : {0, 1, 1}) {
        beam.copy = copies;
        each_fault("translate", [&] { return t2r_translate(decoder, source.data(), source.size(), &beam, &found); });
    }
    for (std::size_t i = 0; i < found; i++) {
        const std::int64_t *tokens;
        std::size_t length;
        must(t2r_translation(decoder, i, &tokens, &length, nullptr));
        show("translation", tokens, length);
    }
    each_fault("encode sources", [&] { return t2r_encode_sources(decoder, sources.data(), lengths.data(), 2, 5); }, states_of(decoder));
    t2r_tokenizer *tokenizer = nullptr;
    each_fault("source tokenizer", [&] { return t2r_open_source_tokenizer(decoder, &tokenizer); });
    must(t2r_close_tokenizer(tokenizer));
    must(t2r_close(decoder));
}

// ---- Text ----

void text(const char *graph) {
    const t2r_options chosen = options();
    t2r_decoder *decoder = nullptr;
    must(t2r_open((golden + "/" + graph + ".onnx").c_str(), &chosen, &decoder));
    t2r_tokenizer *tokenizer = nullptr;
    each_fault("tokenizer", [&] { return t2r_open_tokenizer(decoder, &tokenizer); });
    const std::string given = "The  end of it,\n \xC3\xA9t\xC3\xA9 12";
    const std::int64_t *tokens = nullptr;
    std::size_t length = 0, size = 0;
    const char *found = nullptr;
    for (int i = 0; i < 2; i++) each_fault("encode", [&] { return t2r_encode(tokenizer, given.data(), given.size(), 1, &tokens, &length); });
    const Ids ids(tokens, tokens + length), prompt(ids.begin(), ids.begin() + 3);
    show("encode", ids.data(), length);
    each_fault("decode", [&] { return t2r_decode(tokenizer, ids.data(), length, &found, &size); });
    std::printf("decode %s\n", found);
    t2r_stream *stream = nullptr;
    each_fault("stream", [&] { return t2r_open_stream(tokenizer, prompt.data(), prompt.size(), &stream); });
    const char *const first[] = {"end of nothing", "\xC3\xA9ta"}, *const second[] = {"it, never", "12"};
    std::string fed;
    for (int round = 0; round < 8; round++) {
        each_fault("stop at", [&] { return t2r_stop_at(stream, round % 2 ? second : first, 2); });
        for (const std::int64_t token : ids) {
            each_fault("feed", [&] { return t2r_feed(stream, token, &found, &size); });
            fed += found;
        }
        fed += "|";
        if (round % 3 < 2) continue;
        each_fault("end", [&] { return t2r_end_stream(stream, &found, &size); });
        fed += found;
        fed += "\n";
    }
    std::printf("fed %s\n", fed.c_str());
    must(t2r_close_stream(stream));
    must(t2r_close_tokenizer(tokenizer));
    must(t2r_close(decoder));
}

// ---- t2r_texts.hpp, whose own allocations fail too ----

template <class Work> t2r_kind caught(Work work) {
    try {
        work();
        return T2R_OK;
    } catch (const t2r::Failed &error) {
        return error.kind;
    } catch (const std::bad_alloc &) {
        return T2R_MEMORY;
    }
}

void batch() {
    const t2r::Decoder decoder(golden + "/tiny.onnx", options());
    std::optional<t2r::Batch> batch;
    std::optional<t2r::PrefixCache> cache;
    std::optional<t2r_sampling> sampling = decoder.sampling();
    sampling->seed = 5;
    const Ids ends = {0};
    sampling->stop_tokens = ends.data();
    sampling->stop_count = ends.size();
    const State texts = [&] {
        const std::vector<std::size_t> handles = batch->sequences();
        return std::string(handles.begin(), handles.end());
    };
    const Ids prompts[] = {{3, 1, 4}, {1, 5}, {9, 2, 6, 5}, {8, 9, 7, 9}};
    each_fault("batch", [&] { return caught([&] { batch.emplace(decoder); }); });
    std::size_t last = 0;
    for (const Ids &prompt : prompts)
        each_fault("add", [&] { return caught([&] { last = batch->add(prompt, last + 4, sampling); }); }, texts);
    for (int i = 0; i < 6; i++) {
        std::vector<std::pair<std::size_t, std::int64_t>> chosen;
        each_fault("batch step", [&] { return caught([&] { chosen = batch->step(); }); }, texts);
        for (const auto &[sequence, token] : chosen) std::printf("%zu: %lld\n", sequence, static_cast<long long>(token));
        const std::size_t handle = batch->sequences().empty() ? 0 : batch->sequences().back();
        if (i == 1) each_fault("remove", [&] { return caught([&] { batch->remove(handle); }); }, texts);
    }
    Ids text = {3, 1, 4, 1, 5, 9, 2, 6, 5};
    each_fault("cache", [&] { return caught([&] { cache.emplace(decoder, 3000, 2); }); });
    for (const std::int64_t token : {5, 5, 8, 8}) {
        text[6] = token;
        const float *logits = nullptr;
        each_fault("cached read", [&] { return caught([&] { logits = cache->read(text); }); });
        show("cached read", logits, 17);
        Ids answer;
        each_fault("cached generate", [&] { return caught([&] { answer = cache->generate(text, 4, sampling); }); });
        show("cached generate", answer.data(), answer.size());
    }
}

// ---- Wrong on purpose: each must be found ----

t2r_kind with_memory(const std::function<void()> &work, t2r_kind failed) {
    try {
        work();
        return T2R_OK;
    } catch (const std::bad_alloc &) {
        t2r_close(nullptr);  // for a line
        return failed;
    }
}

void leaks() {
    const auto work = [] {
        int *const first = new int(1);
        delete new int(2);
        delete first;
    };
    each_fault("leak", [&] { return with_memory(work, T2R_MEMORY); });
}

void swallows() {
    each_fault("swallow", [] { return with_memory([] { delete new int(1); }, T2R_OK); });
}

void mistakes() {
    each_fault("mistake", [] { return with_memory([] { delete new int(1); }, T2R_STATE); });
}

void changes() {
    int total = 0;
    const auto work = [&] { total++, delete new int(1); };
    each_fault("change", [&] { return with_memory(work, T2R_MEMORY); }, [&] { return std::to_string(total); });
}

void tears() {
    const auto work = [] {
        std::FILE *const file = std::fopen((out + "/part").c_str(), "wb");
        if (!file) return T2R_FILE;
        const bool good = std::fputs("in place", file) >= 0;
        return std::fclose(file) == 0 && good ? T2R_OK : T2R_FILE;
    };
    t2r_close(nullptr);
    each_fault("tear", work, files);
}

const std::map<std::string, void (*)()> cases = {
    {"decoder", decoder}, {"rows", rows}, {"companion", companion}, {"translator", translator}, {"batch", batch},
    {"adapters", adapters}, {"vectors", vectors}, {"plugin", plugin},
    {"bytes", [] { text("bytes"); }}, {"pieces", [] { text("pieces"); }}, {"unigram", [] { text("unigram"); }},
    {"leaks", leaks}, {"swallows", swallows}, {"mistakes", mistakes}, {"changes", changes}, {"tears", tears},
};

}  // namespace

int main(int given, char **arguments) {
    if (given != 6 || !cases.count(arguments[5])) return std::fputs("usage: torture KIND once|on FOLDER OUT CASE\n", stderr), 2;
    kind_name = arguments[1];
    plans = kind_name != "none";
    kind = kind_name == "files" ? faults::Kind::files : kind_name == "onnxruntime" ? faults::Kind::onnxruntime : faults::Kind::memory;
    on = std::strcmp(arguments[2], "on") == 0;
    golden = arguments[3];
    out = arguments[4];
    cases.at(arguments[5])();
    std::fprintf(stderr, "%ld faults\n", count);
    return 0;
}
