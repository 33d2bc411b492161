// Traces: from given states, the logits after each token and the states after the last; and greedy texts.
#include <algorithm>
#include <cstring>

#include "case.hpp"

namespace conformance {

using t2r::Json;

namespace {

std::string text(double value) { return std::to_string(value); }

template <class T> void append(std::vector<char> &bytes, double value) {
    const T number = static_cast<T>(value);
    const char *begin = reinterpret_cast<const char *>(&number);
    bytes.insert(bytes.end(), begin, begin + sizeof number);
}

// Reads a trace from its start in pieces of these lengths: compares the logits after each, and the states after the last.
void pieces(const Decoder &decoder, Json::Value golden, const std::vector<std::int64_t> &lengths) {
    const Array ids(golden.at("ids")), logits(golden.at("logits"));
    const auto batch = static_cast<std::size_t>(ids.shape.at(0)), count = static_cast<std::size_t>(ids.shape.at(1));
    set_states(decoder, golden.at("start"));
    std::size_t read = 0;
    for (const std::int64_t length : lengths) {
        std::vector<std::int64_t> piece;
        for (std::size_t b = 0; b < batch; b++)
            for (std::int64_t t = 0; t < length; t++)
                piece.push_back(static_cast<std::int64_t>(ids.data.at(b * count + read + static_cast<std::size_t>(t))));
        read += static_cast<std::size_t>(length);
        const float *found;
        if (length == 1) ok(t2r_step(decoder, piece.data(), batch, &found));
        else ok(t2r_prefill(decoder, piece.data(), batch, static_cast<std::size_t>(length), &found));
        compare_logits(found, logits, read - 1, golden.at("tolerance"));
    }
    require(read == count, "pieces of another length than the text");
    compare_states(decoder, golden.at("end"), golden.at("tolerance"));
}

// Compares the graph's own choice of the largest logits, after each token.
void top(const Decoder &decoder, Json::Value golden) {
    const Array ids(golden.at("ids")), logits(golden.at("top").at("logits")), tokens(golden.at("top").at("tokens"));
    const auto batch = static_cast<std::size_t>(ids.shape.at(0)), count = static_cast<std::size_t>(ids.shape.at(1)),
               few = static_cast<std::size_t>(tokens.shape.at(2));
    require(few == static_cast<std::size_t>(decoder.info().top_k), "another top_k");
    set_states(decoder, golden.at("start"));
    for (std::size_t t = 0; t < count; t++) {
        std::vector<std::int64_t> column;
        for (std::size_t b = 0; b < batch; b++) column.push_back(static_cast<std::int64_t>(ids.data[b * count + t]));
        const float *found;
        const std::int64_t *chosen;
        ok(t2r_top_k(decoder, column.data(), batch, 1, &found, &chosen));
        compare_logits(found, logits, t, golden.at("tolerance"));
        for (std::size_t b = 0; b < batch; b++)
            for (std::size_t k = 0; k < few; k++)
                require(chosen[b * few + k] == static_cast<std::int64_t>(tokens.data[(b * count + t) * few + k]), "other top tokens");
    }
}

// After a reset of a decoder that has read other tokens, which must have no effect.
void greedy(const Decoder &decoder, Json::Value golden) {
    const std::vector<std::int64_t> prompt = integers(golden.at("prompt")), wanted = integers(golden.at("tokens"));
    t2r_sampling sampling;
    ok(t2r_sampling_defaults(decoder, &sampling, sizeof sampling));
    const std::int64_t nothing = 0;
    sampling.temperature = 0;
    sampling.stop_tokens = &nothing;
    sampling.stop_count = 0;
    for (const t2r_callback callback : {t2r_callback{nullptr}, t2r_callback{go_on}}) {
        const std::int64_t *tokens;
        std::size_t count;
        ok(t2r_reset(decoder, 1));
        ok(t2r_step(decoder, prompt.data(), 1, nullptr));
        ok(t2r_reset(decoder, 0));
        ok(t2r_generate(decoder, prompt.data(), prompt.size(), static_cast<std::int64_t>(wanted.size()), &sampling, callback,
                        nullptr, &tokens, &count));
        require(std::vector<std::int64_t>(tokens, tokens + count) == wanted, "other greedy tokens");
    }
}

}  // namespace

std::vector<double> numbers_of(const t2r_tensor &tensor) {
    std::vector<double> numbers;
    const std::string dtype = tensor.dtype;
    const auto *bytes = static_cast<const char *>(tensor.data);
    const std::size_t size = dtype == "int64" ? 8 : dtype == "float16" ? 2 : 4;
    require(size != 2, "no golden file has states of float16");
    for (std::size_t at = 0; at < tensor.bytes; at += size) {
        float real;
        std::int32_t whole;
        std::int64_t large;
        if (dtype == "float32") numbers.push_back((std::memcpy(&real, bytes + at, 4), real));
        else if (dtype == "int32") numbers.push_back((std::memcpy(&whole, bytes + at, 4), whole));
        else numbers.push_back(static_cast<double>((std::memcpy(&large, bytes + at, 8), large)));
    }
    return numbers;
}

void set_states(t2r_decoder *decoder, Json::Value states) {
    t2r_info info;
    ok(t2r_get_info(decoder, &info, sizeof info));
    std::vector<t2r_tensor> given(info.states);
    std::vector<std::vector<char>> bytes(info.states);
    std::vector<Array> arrays;
    for (std::size_t i = 0; i < info.states; i++) {
        ok(t2r_state(decoder, i, &given[i]));
        arrays.emplace_back(states.at(given[i].name));
        const std::string dtype = given[i].dtype;
        for (const double value : arrays[i].data) {
            if (dtype == "float32") append<float>(bytes[i], value);
            else if (dtype == "int32") append<std::int32_t>(bytes[i], value);
            else append<std::int64_t>(bytes[i], value);
        }
    }
    for (std::size_t i = 0; i < info.states; i++) {
        given[i].rank = arrays[i].shape.size();
        given[i].shape = arrays[i].shape.data();
        given[i].data = bytes[i].data();
        given[i].bytes = bytes[i].size();
    }
    ok(t2r_set_states(decoder, given.data(), given.size(), 0));
}

int go_on(std::int64_t, void *) { return 1; }

void compare_state(const t2r_tensor &state, const Array &wanted, double tolerance) {
    const std::vector<std::int64_t> shape(state.shape, state.shape + state.rank);
    require(shape == wanted.shape, std::string("the shape of ") + state.name);
    const std::vector<double> found = numbers_of(state);
    double largest = 0;
    for (const double value : wanted.data) largest = std::max(largest, std::abs(value));
    for (std::size_t i = 0; i < found.size(); i++)
        require(std::abs(found[i] - wanted.data[i]) <= tolerance * largest,
                std::string(state.name) + ": " + text(found[i]) + " for " + text(wanted.data[i]));
}

void compare_logits(const float *found, const Array &wanted, std::size_t step, Json::Value tolerance) {
    const double bound = tolerance.at("logits_absolute").real();
    const auto batch = static_cast<std::size_t>(wanted.shape.at(0)), count = static_cast<std::size_t>(wanted.shape.at(1)),
               size = static_cast<std::size_t>(wanted.shape.at(2));
    for (std::size_t b = 0; b < batch; b++)
        for (std::size_t i = 0; i < size; i++) {
            const double value = wanted.data.at((b * count + step) * size + i);
            require(std::abs(found[b * size + i] - value) <= bound,
                    "logits after token " + std::to_string(step) + ": " + text(found[b * size + i]) + " for " + text(value));
        }
}

void compare_states(t2r_decoder *decoder, Json::Value wanted, Json::Value tolerance) {
    t2r_info info;
    ok(t2r_get_info(decoder, &info, sizeof info));
    for (std::size_t i = 0; i < info.states; i++) {
        t2r_tensor state;
        ok(t2r_state(decoder, i, &state));
        compare_state(state, Array(wanted.at(state.name)), tolerance.at("state_relative_to_its_largest").real());
    }
}

void run_trace(const std::string &folder, Json::Value golden) {
    const Decoder decoder(folder + "/" + std::string(golden.at("graph").string()));
    pieces(decoder, golden, std::vector<std::int64_t>(static_cast<std::size_t>(Array(golden.at("ids")).shape.at(1)), 1));
    if (const auto cuts = golden.find("cuts")) pieces(decoder, golden, integers(*cuts));
    if (golden.find("top")) top(decoder, golden);
    if (const auto wanted = golden.find("greedy")) greedy(decoder, *wanted);
}

}  // namespace conformance
