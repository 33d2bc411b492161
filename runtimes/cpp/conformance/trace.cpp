// A trace: from given states, the logits after each token and the states after the last; and a greedy text.
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

void compare_logits(const float *found, const double *wanted, std::size_t count, double tolerance, std::size_t step) {
    for (std::size_t i = 0; i < count; i++)
        require(std::abs(found[i] - wanted[i]) <= tolerance,
                "logits after token " + std::to_string(step) + ": " + text(found[i]) + " for " + text(wanted[i]));
}

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

void steps(const std::string &path, Json::Value golden) {
    const Decoder decoder(path);
    const Array ids(golden.at("ids")), logits(golden.at("logits"));
    const Json::Value tolerance = golden.at("tolerance");
    const auto batch = static_cast<std::size_t>(ids.shape.at(0)), count = static_cast<std::size_t>(ids.shape.at(1)),
               vocabulary = static_cast<std::size_t>(logits.shape.at(2));
    set_states(decoder, golden.at("start"));
    for (std::size_t t = 0; t < count; t++) {
        std::vector<std::int64_t> column;
        for (std::size_t b = 0; b < batch; b++) column.push_back(static_cast<std::int64_t>(ids.data[b * count + t]));
        const float *found;
        ok(t2r_step(decoder, column.data(), batch, &found));
        for (std::size_t b = 0; b < batch; b++)
            compare_logits(found + b * vocabulary, &logits.data[(b * count + t) * vocabulary], vocabulary,
                           tolerance.at("logits_absolute").real(), t);
    }
    const double bound = tolerance.at("state_relative_to_its_largest").real();
    for (std::size_t i = 0; i < decoder.info().states; i++) {
        t2r_tensor state;
        ok(t2r_state(decoder, i, &state));
        compare_state(state, Array(golden.at("end").at(state.name)), bound);
    }
}

// One token after the other, after a reset of a decoder that has read something else: what was read must be forgotten.
void greedy(const std::string &path, Json::Value golden) {
    const Decoder decoder(path);
    const auto vocabulary = static_cast<std::size_t>(decoder.info().vocab_size);
    std::vector<std::int64_t> tokens = integers(golden.at("prompt"));
    const std::vector<std::int64_t> wanted = integers(golden.at("tokens"));
    ok(t2r_step(decoder, tokens.data(), 1, nullptr));
    ok(t2r_reset(decoder, 0));
    const std::size_t prompt = tokens.size();
    for (std::size_t t = 0; tokens.size() < prompt + wanted.size(); t++) {
        const float *logits;
        ok(t2r_step(decoder, &tokens[t], 1, &logits));
        if (t + 1 == tokens.size()) tokens.push_back(std::max_element(logits, logits + vocabulary) - logits);
    }
    require(std::equal(wanted.begin(), wanted.end(), tokens.begin() + static_cast<std::ptrdiff_t>(prompt)), "other tokens");
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

void run_trace(Tally &tally, const std::string &folder, const std::string &name, Json::Value golden) {
    const std::string path = folder + "/" + std::string(golden.at("graph").string());
    tally.run(name + ": logits and states", [&] { steps(path, golden); });
    tally.run(name + ": greedy text", [&] { greedy(path, golden.at("greedy")); });
}

}  // namespace conformance
