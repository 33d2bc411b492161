// The other cases of a decoder: drawn texts, rows that are dropped and reordered, snapshots, and files that are bad.
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

void draw(const Decoder &decoder, Json::Value text) {
    t2r_sampling sampling;
    ok(t2r_sampling_defaults(decoder, &sampling, sizeof sampling));
    std::vector<std::int64_t> stops(1);
    text.at("options").each_pair([&](std::string_view name, Json::Value value) {
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
    const std::vector<std::int64_t> prompt = integers(text.at("prompt"));
    for (const t2r_callback callback : {t2r_callback{go_on}, t2r_callback{nullptr}}) {
        const std::int64_t *tokens;
        std::size_t count;
        ok(t2r_reset(decoder, 1));
        ok(t2r_generate(decoder, prompt.data(), prompt.size(), text.at("max_tokens").integer(), &sampling, callback, nullptr,
                        &tokens, &count));
        require(std::vector<std::int64_t>(tokens, tokens + count) == integers(text.at("tokens")),
                std::string("other tokens ") + (callback ? "with" : "without") + " a callback");
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

// What went wrong: the kind, and the line.
struct Wrong {
    explicit Wrong(t2r_kind kind) : kind(t2r_kind_name(kind)), line(t2r_error()) {}
    std::string kind, line;
};

// What a call with a bad file gives.
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
    t2r_kind kind = T2R_OK;
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
        kind = t2r_generate(opened, &token, 1, 1, nullptr, nullptr, nullptr, &tokens, &count);
    } else {
        require(call == "read", "a call that is not known here: " + call);
        bad.at("tokens").each([&](Json::Value step) {
            const std::vector<std::int64_t> tokens = integers(step);
            if (kind == T2R_OK) kind = t2r_step(opened, tokens.data(), tokens.size(), nullptr);
        });
    }
    return Wrong(kind);
}

}  // namespace

void run_sampling(const std::string &folder, Json::Value golden) {
    const Decoder decoder(place(folder, golden.at("graph")));
    golden.at("texts").each([&](Json::Value text) { draw(decoder, text); });
}

void run_batch(const std::string &folder, Json::Value golden) {
    const Decoder decoder(place(folder, golden.at("graph")));
    golden.at("operations").each([&](Json::Value operation) {
        if (const auto batch = operation.find("reset")) {
            ok(t2r_reset(decoder, static_cast<std::size_t>(batch->integer())));
        } else if (const auto rows = operation.find("reorder")) {
            const std::vector<std::int64_t> order = integers(*rows);
            ok(t2r_reorder(decoder, order.data(), order.size()));
        } else {
            const std::vector<std::int64_t> tokens = integers(operation.at("step"));
            const Array wanted(operation.at("logits"));
            const float *found;
            ok(t2r_step(decoder, tokens.data(), tokens.size(), &found));
            for (std::size_t i = 0; i < wanted.data.size(); i++)
                require(std::abs(found[i] - wanted.data[i]) <= golden.at("tolerance").at("logits_absolute").real(), "other logits");
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
