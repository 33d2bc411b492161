// The other cases of a decoder: sampled texts, sequences of calls, snapshots, and bad files.
#include <cstring>
#include <filesystem>

#include "case.hpp"

namespace conformance {

using t2r::Json;

namespace {

std::string place(const std::string &folder, Json::Value name) { return folder + "/" + std::string(name.string()); }

std::string bytes_of(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    require(static_cast<bool>(file), path + " cannot be read");
    return {std::istreambuf_iterator<char>(file), {}};
}

t2r_sampling sampling_of(const Decoder &decoder, Json::Value options, std::vector<std::int64_t> &stops) {
    t2r_sampling sampling;
    ok(t2r_sampling_defaults(decoder, &sampling, sizeof sampling));
    options.each_pair([&](std::string_view name, Json::Value value) {
        if (name == "temperature") sampling.temperature = value.real();
        else if (name == "top_k") sampling.top_k = value.integer();
        else if (name == "top_p") sampling.top_p = value.real();
        else if (name == "min_p") sampling.min_p = value.real();
        else if (name == "repetition_penalty") sampling.repetition_penalty = value.real();
        else if (name == "no_repeat_ngram") sampling.no_repeat_ngram = value.integer();
        else if (name == "seed") sampling.seed = value.integer();
        else if (name == "stop_tokens" && !value.is_null()) {
            stops = integers(value);
            sampling.stop_count = stops.size();
            stops.push_back(0);
            sampling.stop_tokens = stops.data();
        } else require(value.is_null(), "an option that is not known here: " + std::string(name));
    });
    return sampling;
}

void draw(const Decoder &decoder, Json::Value text, bool drafts) {
    std::vector<std::int64_t> stops;
    const t2r_sampling sampling = sampling_of(decoder, text.at("options"), stops);
    const std::vector<std::int64_t> prompt = integers(text.at("prompt"));
    for (const int way : {0, 1, 2}) {
        if (way == 2 && !drafts) continue;
        const t2r_callback callback = way == 0 ? go_on : t2r_callback{nullptr};
        if (drafts) ok(t2r_draft(decoder, way == 2));
        const std::int64_t *tokens;
        std::size_t count;
        ok(t2r_reset(decoder, 1));
        ok(t2r_generate(decoder, prompt.data(), prompt.size(), text.at("max_tokens").integer(), &sampling, callback, nullptr,
                        &tokens, &count));
        require(std::vector<std::int64_t>(tokens, tokens + count) == integers(text.at("tokens")),
                std::string("other tokens ") + (callback ? "with" : "without") + " a callback" + (way == 2 ? ", with drafts" : ""));
        require(decoder.info().position == static_cast<std::int64_t>(prompt.size() + count) - 1, "another number of tokens read");
    }
}

void compare_bits(const t2r_tensor &state, const Array &wanted) {
    require(std::vector<std::int64_t>(state.shape, state.shape + state.rank) == wanted.shape, std::string("the shape of ") + state.name);
    const std::vector<double> found = numbers_of(state);
    for (std::size_t i = 0; i < found.size(); i++) {
        const double value = std::string(state.dtype) == "float32" ? static_cast<float>(wanted.data[i]) : wanted.data[i];
        require(found[i] == value, std::string(state.name) + " is not equal to the bit");
    }
}

// Tokens (B, T), row-major.
struct Rows {
    explicit Rows(Json::Value list) {
        list.each([&](Json::Value row) {
            const std::vector<std::int64_t> some = integers(row);
            tokens.insert(tokens.end(), some.begin(), some.end());
            length = some.size();
            count++;
        });
    }
    std::vector<std::int64_t> tokens;
    std::size_t count = 0, length = 0;
};

// An error: its kind and its line.
struct Wrong {
    explicit Wrong(t2r_kind kind) : kind(t2r_kind_name(kind)), line(t2r_error()) {}
    std::string kind, line;
};

// The error of a call with a bad file.
Wrong try_call(const std::string &folder, Json::Value bad) {
    const std::string call(bad.at("call").string()), file = place(folder, bad.at("file"));
    t2r_decoder *decoder = nullptr;
    if (call == "open") {
        const Wrong wrong(t2r_open(file.c_str(), nullptr, &decoder));
        t2r_close(decoder);
        return wrong;
    }
    const Decoder opened(call == "snapshot" ? place(folder, bad.at("graph")) : file);
    if (call == "snapshot") return Wrong(t2r_load(opened, file.c_str(), nullptr));
    if (call == "tokenizer") {
        t2r_tokenizer *tokenizer;
        const Wrong wrong(t2r_open_tokenizer(opened, &tokenizer));
        t2r_close_tokenizer(tokenizer);
        return wrong;
    }
    if (call == "translate") {
        const std::vector<std::int64_t> source = integers(bad.at("source"));
        const t2r_beam beam = beam_of(opened, bad.at("beam"));
        std::size_t found;
        return Wrong(t2r_translate(opened, source.data(), source.size(), &beam, &found));
    }
    if (call == "encode") {
        t2r_tokenizer *tokenizer;
        ok(t2r_open_tokenizer(opened, &tokenizer));
        const std::string_view text = bad.at("text").string();
        const std::int64_t *tokens;
        std::size_t count;
        const Wrong wrong(t2r_encode(tokenizer, text.data(), text.size(), 1, &tokens, &count));
        t2r_close_tokenizer(tokenizer);
        return wrong;
    }
    if (call == "generate") {
        const std::int64_t token = 1, *tokens;
        std::size_t count;
        return Wrong(t2r_generate(opened, &token, 1, 1, nullptr, nullptr, nullptr, &tokens, &count));
    }
    require(call == "prefill", "a call that is not known here: " + call);
    const Rows rows(bad.at("tokens"));
    return Wrong(t2r_prefill(opened, rows.tokens.data(), rows.count, rows.length, nullptr));
}

// A callback that ends a text after `left` tokens.
struct Watcher {
    std::int64_t left;
    static int watch(std::int64_t, void *user) { return --static_cast<Watcher *>(user)->left > 0; }
};

t2r_kind generate(const Decoder &decoder, Json::Value call) {
    std::vector<std::int64_t> stops;
    const std::vector<std::int64_t> prompt = integers(call.at("generate"));
    const t2r_sampling sampling = sampling_of(decoder, call.at("options"), stops);
    const auto end = call.find("ends_at");
    Watcher watcher{end ? end->integer() : 0};
    const std::int64_t *tokens;
    std::size_t count;
    const t2r_kind kind = t2r_generate(decoder, prompt.data(), prompt.size(), call.at("max_tokens").integer(), &sampling,
                                       end ? Watcher::watch : t2r_callback{nullptr}, &watcher, &tokens, &count);
    if (const auto wanted = call.find("tokens"); wanted && kind == T2R_OK)
        require(std::vector<std::int64_t>(tokens, tokens + count) == integers(*wanted), "other tokens");
    return kind;
}

// Makes the call of a decoder that a key names; sets its logits, if it has any.
t2r_kind one_call(const Decoder &decoder, const std::string &folder, Json::Value call, const float **logits) {
    if (const auto batch = call.find("reset")) return t2r_reset(decoder, static_cast<std::size_t>(batch->integer()));
    if (call.find("generate")) return generate(decoder, call);
    if (const auto file = call.find("load")) return t2r_load(decoder, place(folder, *file).c_str(), nullptr);
    if (const auto names = call.find("adapt")) {
        std::vector<std::string> texts;
        std::vector<const char *> given;
        names->each([&](Json::Value name) { texts.emplace_back(name.is_null() ? std::string_view() : name.string()); });
        for (const std::string &text : texts) given.push_back(text.empty() ? nullptr : text.c_str());
        return t2r_adapt(decoder, given.data(), given.size());
    }
    if (const auto rows = call.find("reorder")) {
        const std::vector<std::int64_t> order = integers(*rows);
        return t2r_reorder(decoder, order.data(), order.size());
    }
    if (const auto tokens = call.find("step")) {
        const std::vector<std::int64_t> column = integers(*tokens);
        return t2r_step(decoder, column.data(), column.size(), logits);
    }
    const auto prompt = call.find("prefill");
    const Rows rows(prompt ? *prompt : call.at("top_k"));
    if (prompt) return t2r_prefill(decoder, rows.tokens.data(), rows.count, rows.length, logits);
    return t2r_top_k(decoder, rows.tokens.data(), rows.count, rows.length, logits, nullptr);
}

void compare_call(const Decoder &decoder, const std::string &folder, Json::Value call, Json::Value tolerance) {
    const float *found = nullptr;
    const t2r_kind kind = one_call(decoder, folder, call, &found);
    const auto error = call.find("error");
    require((kind == T2R_OK ? "" : t2r_kind_name(kind)) == (error ? error->string() : ""),
            std::string("the error ") + t2r_kind_name(kind) + ": " + t2r_error());
    if (const auto position = call.find("position"))
        require(decoder.info().position == position->integer(), "the position " + std::to_string(decoder.info().position));
    if (const auto logits = call.find("logits")) {
        const Array wanted(*logits);
        for (std::size_t i = 0; i < wanted.data.size(); i++)
            require(std::abs(found[i] - wanted.data[i]) <= tolerance.at("logits_absolute").real(), "other logits");
    }
}

}  // namespace

void run_sampling(const std::string &folder, Json::Value golden) {
    const Decoder decoder(place(folder, golden.at("graph")));
    const bool drafts = golden.find("draft").has_value();
    golden.at("texts").each([&](Json::Value text) { draw(decoder, text, drafts); });
}

void run_calls(const std::string &folder, Json::Value golden) {
    const Decoder decoder(place(folder, golden.at("graph")));
    std::size_t place = 0;
    golden.at("operations").each([&](Json::Value call) {
        try {
            compare_call(decoder, folder, call, golden.at("tolerance"));
            place++;
        } catch (const Failed &failed) {
            throw Failed{"call " + std::to_string(place) + ": " + failed.why};
        }
    });
    compare_states(decoder, golden.at("end"), golden.at("tolerance"));
}

void run_snapshot(const std::string &folder, Json::Value golden) {
    const Decoder decoder(place(folder, golden.at("graph")));
    const std::string path = place(folder, golden.at("snapshot"));
    std::int64_t token;
    ok(t2r_load(decoder, path.c_str(), &token));
    require(decoder.info().position == golden.at("position").integer(), "another position");
    require(token == (golden.at("token").is_null() ? -1 : golden.at("token").integer()), "another token");
    for (std::size_t i = 0; i < decoder.info().states; i++) {
        t2r_tensor state;
        ok(t2r_state(decoder, i, &state));
        compare_bits(state, Array(golden.at("states").at(state.name)));
    }
    const std::string copy = (std::filesystem::temp_directory_path() / "t2r_conformance.npz").string();
    ok(t2r_save(decoder, copy.c_str(), token));
    const bool same = bytes_of(copy) == bytes_of(path);
    std::filesystem::remove(copy);
    require(same, "other bytes when it is saved again");
    const Array ids(golden.at("ids")), logits(golden.at("logits"));
    const auto batch = static_cast<std::size_t>(ids.shape.at(0)), count = static_cast<std::size_t>(ids.shape.at(1));
    for (std::size_t t = 0; t < count; t++) {
        std::vector<std::int64_t> column;
        for (std::size_t b = 0; b < batch; b++) column.push_back(static_cast<std::int64_t>(ids.data[b * count + t]));
        const float *found;
        ok(t2r_step(decoder, column.data(), batch, &found));
        compare_logits(found, logits, t, golden.at("tolerance"));
    }
}

void run_bad(const std::string &folder, Json::Value golden) {
    golden.at("files").each([&](Json::Value bad) {
        const std::string name(bad.at("file").string()), wanted(bad.at("kind").string());
        try {
            const Wrong found = try_call(folder, bad);
            require(found.kind == wanted, found.kind + " for " + wanted + ": " + found.line);
            require(found.line.rfind("expected ", 0) == 0 && found.line.find('\n') == std::string::npos, "no message of one line");
        } catch (const Failed &error) {
            throw Failed{name + ": " + error.why};
        }
    });
}

}  // namespace conformance
