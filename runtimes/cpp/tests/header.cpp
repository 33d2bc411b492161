// header FOLDER: every method of t2r.hpp on the golden files of FOLDER. Exits with 1 if one does not do what t2r.h says.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <iterator>
#include <t2r_texts.hpp>

#include "../conformance/case.hpp"

namespace {

void expect(bool good, const char *what) {
    if (!good) {
        std::cerr << what << "\n";
        std::exit(1);
    }
}
#define EXPECT(good) expect(good, #good)

template <class F> t2r_kind told(F call) {
    try {
        call();
    } catch (const t2r::Failed &failed) {
        return failed.kind;
    }
    return T2R_OK;
}

std::string content(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

t2r::Tokens alone(const t2r::Decoder &like, const t2r::Tokens &prompt, std::int64_t most, const t2r_sampling &sampling) {
    return like.fork().generate(prompt, most, sampling, [](std::int64_t) { return true; });
}

// Texts of a changing batch equal those generated alone.
void batches(const std::string &folder) {
    const t2r::Decoder decoder(folder + "/tiny.onnx");
    t2r::Batch batch(decoder);
    EXPECT(batch.step().empty() && batch.sequences().empty());
    t2r_sampling sampling = decoder.sampling();
    sampling.stop_count = 1;
    std::vector<t2r::Tokens> wanted, written(6);
    const auto step = [&] {
        for (const auto &[handle, token] : batch.step()) written[handle].push_back(token);
    };
    for (std::int64_t n = 0; n < 6; n++) {
        t2r::Tokens prompt = {n, 3, 5};
        prompt.resize(static_cast<std::size_t>(1 + n % 3));
        const std::int64_t stop = 4;
        sampling.temperature = n % 2;
        sampling.repetition_penalty = n == 4 ? 1.5 : 1;
        sampling.seed = n;
        sampling.stop_tokens = &stop;
        wanted.push_back(alone(decoder, prompt, 3 + 2 * n, sampling));
        EXPECT(batch.add(prompt, 3 + 2 * n, sampling) == static_cast<std::size_t>(n));
        if (n % 2) step();
    }
    EXPECT(told([&] { batch.add({}, 3); }) == T2R_TOKEN && told([&] { batch.add({1, 17}, 3); }) == T2R_TOKEN);
    EXPECT(told([&] { batch.add({1}, 0); }) == T2R_SAMPLING && told([&] { batch.remove(9); }) == T2R_BATCH);
    const std::size_t removed = batch.sequences().back();
    t2r::Decoder rest = batch.remove(removed);
    const auto left = static_cast<std::int64_t>(wanted[removed].size() - written[removed].size());
    EXPECT(left > 0 && written[removed].size() > 0 && rest.info().batch == 1);
    while (!batch.sequences().empty()) step();
    for (std::size_t n = 0; n < 6; n++) EXPECT(n == removed ? written[n].size() < wanted[n].size() : written[n] == wanted[n]);
    const t2r::Decoder hybrid(folder + "/tiny-hybrid.onnx");
    t2r::Batch growing(hybrid);
    growing.add({1, 2, 3}, 3);
    EXPECT(told([&] { growing.add({1}, 3); }) == T2R_BATCH && growing.sequences().size() == 1);
    const t2r::Decoder broken(folder + "/bad/not-finite.onnx");
    t2r::Batch ended(broken);
    ended.add({4, 3, 2}, 6);
    const auto last = ended.step();
    EXPECT(last.size() == 1 && last[0].second == -1 && ended.sequences().empty());
}

void prefixes(const std::string &folder) {
    const t2r::Decoder decoder(folder + "/tiny-hybrid.onnx");
    t2r::PrefixCache cache(decoder, 1 << 20, 5);
    t2r_sampling sampling = decoder.sampling();
    sampling.temperature = 0;
    sampling.repetition_penalty = 1.4;
    const std::pair<std::int64_t, std::size_t> texts[] = {{0, 0}, {1, 20}, {2, 20}, {0, 26}};
    for (const auto &[n, reused] : texts) {
        t2r::Tokens text;
        for (std::int64_t at = 0; at < 23; at++) text.push_back(at * 7 % 17);
        text.insert(text.end(), {n, n + 1, n + 2, 3});
        EXPECT(cache.generate(text, 8, sampling) == alone(decoder, text, 8, sampling) && cache.reused == reused);
    }
    const t2r::Tokens broken = {7, 7, 7, 2};
    const auto breaks = [](std::int64_t) -> bool { throw std::runtime_error("enough"); };
    try {
        cache.generate(broken, 8, sampling, breaks);
        EXPECT(!"it went on");
    } catch (const std::runtime_error &) {
    }
    EXPECT(cache.generate(broken, 8, sampling) == alone(decoder, broken, 8, sampling) && cache.reused == 3);
    t2r::PrefixCache none(decoder, 0, 1);
    none.read({1, 2, 3});
    none.read({1, 2, 3});
    EXPECT(none.reused == 0 && none.kept_bytes() == 0 && cache.kept_bytes() > 0);
    t2r::PrefixCache many(t2r::Decoder(folder + "/tiny.onnx"), std::size_t{1} << 30, 1);
    many.read({3});
    const std::size_t each_bytes = many.kept_bytes();
    for (int n = 0; n < 2; n++) many.read(t2r::Tokens(1030, 3));
    EXPECT(many.reused == 1029 && many.kept_bytes() == 1024 * each_bytes);  // leaves most of the 4,096 handles to others
    std::vector<t2r::Decoder> others;
    while (others.size() < 2600) others.push_back(decoder.fork());
    none.read(t2r::Tokens(1030, 3));  // keeps nothing, so it needs no handle for each block
    const std::size_t bytes = cache.kept_bytes();
    EXPECT(told([&] { cache.read({9, 9, 9, 9, 9, 9, 99}); }) == T2R_TOKEN && cache.kept_bytes() == bytes);  // reads no block
    EXPECT(told([&] { t2r::PrefixCache(t2r::Decoder(folder + "/translator.onnx")); }) == T2R_GRAPH);
    t2r::Decoder adapted(folder + "/adapters.onnx");
    t2r::PrefixCache each(adapted, 1 << 20, 2);
    const char *const names[] = {nullptr, "legal", "poems-2"};
    for (const std::size_t reused : {0, 5})
        for (const char *const name : names) {
            adapted.reset();
            adapted.adapt({name});
            each.adapt(name);
            EXPECT(each.generate({5, 3, 9, 1, 7, 2}, 6, sampling) == adapted.generate({5, 3, 9, 1, 7, 2}, 6, sampling) && each.reused == reused);
        }
    EXPECT(told([&] { each.adapt("prose"); }) == T2R_ARGUMENT);
    EXPECT(told([&] { adapted.draft(true); }) == T2R_GRAPH);  // it has no draft-check graph
    adapted.reset();
    adapted.adapt({"poems-2"});
    EXPECT(each.generate({5}, 6, sampling) == adapted.generate({5}, 6, sampling) && each.reused == 0);
    EXPECT(told([&] { t2r::PrefixCache(decoder, 0, 0); }) == T2R_SNAPSHOT && told([&] { cache.read({}); }) == T2R_TOKEN);
}

// What the golden texts reuse, and that logits are those without a cache.
void known(const std::string &folder) {
    const auto golden = conformance::read_json(folder + "/prefixes.json");
    golden->root().each([&](t2r::Json::Value given) {
        const t2r::Decoder decoder(folder + "/" + std::string(given.at("graph").string()));
        std::size_t bytes = 0;
        for (const t2r_tensor &state : decoder.states()) bytes += 2 * state.bytes;
        const bool bound = !given.at("room").is_null();
        const std::size_t most = bound ? static_cast<std::size_t>(given.at("room").integer()) * bytes : std::size_t{1} << 28;
        const auto block = static_cast<std::size_t>(given.at("block").integer());
        double now = 0;
        t2r::PrefixCache cache(decoder, most, block, [&] { return now; }), reader(decoder, most, block);
        t2r::Decoder plain = decoder.fork();
        t2r_sampling greedy = decoder.sampling();
        const std::int64_t no_stops = 0;
        greedy.temperature = 0;
        greedy.stop_tokens = &no_stops;
        greedy.stop_count = 0;
        given.at("texts").each([&](t2r::Json::Value one) {
            now = one.at("at").real();
            const auto named = one.at("adapter");
            const std::string adapter(named.is_null() ? "" : named.string());
            plain.reset();
            for (t2r::PrefixCache *each : {&cache, &reader}) each->adapt(adapter.empty() ? nullptr : adapter.c_str());
            if (!adapter.empty()) plain.adapt({adapter.c_str()});
            const t2r::Tokens text = conformance::integers(one.at("text"));
            const float *const wanted = plain.prefill(text), *const found = reader.read(text);
            const auto close = [](float a, float b) { return std::abs(a - b) <= 1e-4F; };
            EXPECT(std::equal(wanted, wanted + decoder.info().vocab_size, found, close));
            if (const auto written = one.find("answer")) {
                const t2r::Tokens answer = conformance::integers(*written);
                EXPECT(cache.generate(text, static_cast<std::int64_t>(answer.size()), greedy) == answer);
            } else {
                const float *const again = cache.read(text);
                EXPECT(std::equal(wanted, wanted + decoder.info().vocab_size, again, close));
            }
            EXPECT(cache.reused == static_cast<std::size_t>(one.at("reused").integer()));
            EXPECT(!bound || cache.kept_bytes() == static_cast<std::size_t>(one.at("kept").integer()) * bytes);
        });
    });
}

void reading(const std::string &folder) {
    t2r_options options = t2r::options();
    options.threads = 1;
    t2r::Decoder decoder(folder + "/top3.onnx", options);
    const char *const provider[] = {"of no ONNX Runtime"};
    options.provider = provider;
    options.provider_count = 1;
    EXPECT(told([&] { t2r::Decoder(folder + "/top3.onnx", options); }) == T2R_PROVIDER);
    const t2r_info info = decoder.info();
    const auto width = static_cast<std::size_t>(info.vocab_size);
    decoder.reset(2);
    decoder.adapt({nullptr});
    EXPECT(told([&] { decoder.adapt({"no adapter"}); }) == T2R_ARGUMENT);
    const float *logits = decoder.prefill({1, 2, 3, 4, 5, 6}, 2);
    const auto likeliest = [&](const float *row) { return std::max_element(row, row + width) - row; };
    const t2r::Tokens best = {likeliest(logits), likeliest(logits + width)};
    decoder.reset();
    const t2r::Top top = decoder.top_k({1, 2, 3, 4, 5, 6}, 2);
    EXPECT(top.tokens[0] == best[0] && top.tokens[info.top_k] == best[1] && top.logits[0] >= top.logits[1]);
    EXPECT(told([&] { decoder.prefill({1, 2, 3}, 2); }) == T2R_BATCH);
    EXPECT(told([&] { decoder.read_vectors({1, 2, 3}, 2); }) == T2R_BATCH);
    EXPECT(told([&] { decoder.read_vectors({1, 2, 3, 4}, 2); }) == T2R_TOKEN && info.input_size == 0);
    decoder.reorder({1});
    EXPECT(decoder.info().batch == 1 && decoder.info().position == 3);

    t2r::Decoder copy = decoder.copy(), fork = decoder.fork();
    EXPECT(copy.info().position == 3 && fork.info().position == 0);
    for (t2r::Decoder *each : {&decoder, &copy}) each->step({7});
    const float *const next = decoder.step({7});
    EXPECT(std::equal(next, next + width, copy.step({7})));
    const std::string saved = copy.save_memory(9);
    EXPECT(fork.load_memory(saved) == 9 && fork.info().position == 5);
    std::vector<t2r_tensor> states = copy.states();
    fork.reset();
    fork.set_states(states, 5);
    EXPECT(fork.save_memory(9) == saved);
    EXPECT(!decoder.metadata("t2r.chat_template") && decoder.metadata("t2r.role") == "\"step\"");
}

void listening(const std::string &folder) {
    int heard = 0;
    t2r::set_log([&](t2r_level level, const char *message) { heard += level >= T2R_INFO && *message; }, T2R_INFO);
    t2r::Decoder(folder + "/tiny.onnx");
    EXPECT(heard > 0);
    t2r::set_log({});
    const int before = heard;
    t2r::Decoder(folder + "/tiny.onnx");
    EXPECT(heard == before);
}

void writing(const std::string &folder) {
    const std::string graph = content(folder + "/tiny.onnx");
    t2r::Decoder decoder({{"tiny.onnx", graph}}), other(folder + "/tiny.onnx");
    t2r_sampling sampling = decoder.sampling();
    sampling.temperature = 0;
    EXPECT(decoder.generate({1}, 9, sampling) == other.generate({1}, 9, sampling));
    try {
        decoder.generate({1}, 9, sampling, [&](std::int64_t) { return decoder.cancel(), true; });
        EXPECT(!"it was cancelled");
    } catch (const t2r::Cancelled &cancelled) {
        EXPECT(cancelled.kind == T2R_CANCELLED && cancelled.written.size() == 1);
    }
    EXPECT(told([&] { decoder.save(folder); }) == T2R_FILE);
    EXPECT(decoder.load(folder + "/tiny.state") >= -1);
}

void translating(const std::string &folder) {
    t2r::Decoder decoder(folder + "/translator.onnx");
    t2r_beam beam = decoder.beam();
    beam.width = beam.n_best = 2;
    beam.max_tokens = 6;
    const std::vector<t2r::Translation> found = decoder.translate({1, 2, 3}, beam);
    EXPECT(found.size() == 2 && !found[0].tokens.empty() && found[0].score >= found[1].score);
    decoder.encode_sources({{1, 2, 3}, {4}});
    EXPECT(decoder.info().batch == 2 && decoder.info().position == 0);
    EXPECT(told([&] { t2r::Tokenizer::of_source(decoder); }) == T2R_TOKENIZER);  // the graph has none
}

void text(const std::string &folder) {
    const t2r::Decoder decoder(folder + "/bytes.onnx");
    const t2r::Tokenizer tokenizer(decoder);
    const t2r::Tokens tokens = tokenizer.encode("once upon");
    EXPECT(tokenizer.decode(tokens) == "once upon");
    t2r::Stream stream(tokenizer, {tokens[0]});
    std::string pieces;
    for (std::size_t i = 1; i < tokens.size(); i++) pieces += stream.feed(tokens[i]);
    EXPECT(tokenizer.decode({tokens[0]}) + pieces + stream.end() == "once upon");
    t2r::Stream until(tokenizer);
    until.stop_at({"e u"});
    std::string before;
    for (const std::int64_t token : tokens) before += until.feed(token);
    EXPECT(before == "onc" && until.stopped() && until.end().empty());
    const t2r::Tokenizer made(R"({"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}})");
    EXPECT(made.encode("abb") == t2r::Tokens({2, 1}));
}

}  // namespace

int main(int count, char **arguments) try {
    if (count != 2) {
        std::cerr << "usage: header FOLDER\n";
        return 1;
    }
    for (const auto part : {listening, reading, writing, translating, text, batches, prefixes, known}) part(arguments[1]);
    std::cout << "good\n";
} catch (const t2r::Failed &failed) {
    std::cerr << t2r_kind_name(failed.kind) << ": " << failed.what() << "\n";
    return 2;
}
