// Helpers of all cases: counting, comparing, reading golden files.
#pragma once

#include <cmath>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "json.hpp"
#include "t2r.h"

namespace conformance {

struct Failed {
    std::string why;
};

inline void require(bool good, const std::string &why) {
    if (!good) throw Failed{why};
}

// Throws Failed if a call that must succeed does not.
inline void ok(t2r_kind kind) {
    if (kind != T2R_OK) throw Failed{std::string(t2r_kind_name(kind)) + ": " + t2r_error()};
}

struct Decoder {
    explicit Decoder(const std::string &path, bool companions = true) {
        t2r_options options;
        ok(t2r_defaults(&options, sizeof options));
        options.companions = companions;
        ok(t2r_open(path.c_str(), &options, &handle));
    }
    ~Decoder() { t2r_close(handle); }
    Decoder(const Decoder &) = delete;
    Decoder &operator=(const Decoder &) = delete;
    operator t2r_decoder *() const { return handle; }

    t2r_info info() const {
        t2r_info found;
        ok(t2r_get_info(handle, &found, sizeof found));
        return found;
    }

    t2r_decoder *handle = nullptr;
};

inline std::unique_ptr<t2r::Json> read_json(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    require(static_cast<bool>(file), path + " cannot be read");
    std::string text((std::istreambuf_iterator<char>(file)), {});
    return std::make_unique<t2r::Json>(std::move(text));
}

inline std::vector<std::int64_t> integers(t2r::Json::Value list) {
    std::vector<std::int64_t> found;
    list.each([&](t2r::Json::Value value) { found.push_back(value.integer()); });
    return found;
}

// {"shape": [...], "data": [...]}
struct Array {
    explicit Array(t2r::Json::Value value) : shape(integers(value.at("shape"))) {
        value.at("data").each([&](t2r::Json::Value number) { data.push_back(number.real()); });
        std::size_t count = 1;
        for (const std::int64_t dim : shape) count *= static_cast<std::size_t>(dim);
        require(count == data.size(), "an array of another size than its shape");
    }

    std::vector<std::int64_t> shape;
    std::vector<double> data;
};

std::vector<double> numbers_of(const t2r_tensor &tensor);
void set_states(t2r_decoder *decoder, t2r::Json::Value states);
void compare_state(const t2r_tensor &state, const Array &wanted, double tolerance);
// Compare the logits after token `step` of each sequence with logits (B, T, N), and all states, each within its tolerance.
void compare_logits(const float *found, const Array &wanted, std::size_t step, t2r::Json::Value tolerance);
void compare_states(t2r_decoder *decoder, t2r::Json::Value wanted, t2r::Json::Value tolerance);
int go_on(std::int64_t token, void *user);
t2r_beam beam_of(t2r_decoder *decoder, t2r::Json::Value options);

// The kinds of cases; each throws Failed.
void run_trace(const std::string &folder, t2r::Json::Value golden);
void run_sampling(const std::string &folder, t2r::Json::Value golden);
void run_calls(const std::string &folder, t2r::Json::Value golden);
void run_snapshot(const std::string &folder, t2r::Json::Value golden);
void run_tokenizer(const std::string &folder, t2r::Json::Value golden);
void run_stream(const std::string &folder, t2r::Json::Value golden);
void run_translator(const std::string &folder, t2r::Json::Value golden);
void run_bad(const std::string &folder, t2r::Json::Value golden);

}  // namespace conformance
